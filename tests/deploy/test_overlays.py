"""The overlays and components in deploy/kubernetes, as kubectl renders them."""

import json
import re
from pathlib import Path

import pytest

from deploy.prometheus import as_object
from pdgate.engine.command_check import why_not
from pdgate.gateway.kv_events.sources import check_template
from pdgate.protocols.instance import Role
from tests.deploy.rendering import DEPLOY, Json, Rendered, container, kustomized
from tests.deploy.served import as_in_a_pod, found_behind, settings_of

pytestmark = pytest.mark.source

FOLDER = DEPLOY / "kubernetes"
OVERLAYS = {path.name: path for path in sorted((FOLDER / "overlays").iterdir())}
COMPONENTS = sorted(path.name for path in (FOLDER / "components").iterdir())


@pytest.fixture(scope="module")
def rendered() -> dict[str, Rendered]:
    return {name: kustomized(path) for name, path in OVERLAYS.items()}


@pytest.fixture(scope="module")
def with_components(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """The base and all components, as an overlay of a user's."""
    folder = tmp_path_factory.mktemp("overlay")
    # kubectl takes no absolute paths.
    up = Path(*[".."] * (len(folder.resolve().parts) - 1))
    where = up / FOLDER.resolve().relative_to("/")
    said = {
        "resources": [str(where / "base")],
        "components": [str(where / "components" / name) for name in COMPONENTS],
    }
    (folder / "kustomization.yaml").write_text(json.dumps(said))
    return kustomized(folder)


def transfer(rendered: Rendered, engine: str) -> Json:
    (said,) = (
        arg.removeprefix("--kv-transfer-config=")
        for arg in rendered.args(engine)
        if arg.startswith("--kv-transfer-config=")
    )
    found = json.loads(said)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("name", OVERLAYS)
def test_kubernetes_knows_every_field(name: str, rendered: dict[str, Rendered]) -> None:
    rendered[name].validate()


def test_kubernetes_knows_every_field_of_the_components(with_components: Rendered) -> None:
    with_components.validate()


@pytest.mark.parametrize("name", OVERLAYS)
def test_the_gateway_understands_its_flags(
    name: str,
    rendered: dict[str, Rendered],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gateway = container(rendered[name].of("Deployment", "pdgate"))

    with as_in_a_pod(tmp_path, monkeypatch):
        settings = settings_of([*gateway["command"][1:], *gateway["args"]], monkeypatch)

    assert settings.listen.port == gateway["ports"][0]["containerPort"]
    assert settings.adaptive.enabled == (name == "adaptive")
    assert bool(settings.redis) == (name in ("adaptive", "pd-decode-first"))
    assert settings.directory == ("" if name == "neuron" else "kubernetes")


@pytest.mark.parametrize(
    ("name", "protocol", "kv_port"),
    [
        ("pd-mooncake", "vllm-mooncake", "8998"),
        ("pd-kvt", "vllm-kvt", "28000"),
        ("pd-sglang", "sglang", "8998"),
        # The queue finds them.
        ("pd-decode-first", "decode-first", ""),
        ("neuron-nixl", "neuron (nixl)", ""),
    ],
)
async def test_the_engines_are_found_with_the_port_where_kv_is_asked_for(
    name: str, protocol: str, kv_port: str, rendered: dict[str, Rendered]
) -> None:
    engines = {
        found: engine
        for found, engine in (await found_behind(_without_stores(rendered[name]))).items()
        if found != "pdgate"
    }

    assert {found: engine.role for found, engine in engines.items()} == {
        "prefill": Role.PREFILL,
        "decode": Role.DECODE,
    }
    assert {engine.instance().speaks for engine in engines.values()} == {protocol}
    assert engines["prefill"].kv.rpartition(":")[2] == kv_port


async def test_adaptive_has_engines_for_both_sides(rendered: dict[str, Rendered]) -> None:
    engines = await found_behind(_without_stores(rendered["adaptive"]))

    assert engines["engine"].role is Role.BOTH
    assert transfer(rendered["adaptive"], "engine")["kv_role"] == "kv_both"


def test_kvt_engines_say_what_the_gateway_listens_for(rendered: dict[str, Rendered]) -> None:
    overlay = rendered["pd-kvt"]
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in overlay.args("pdgate"))

    for engine in ("prefill", "decode"):
        assert transfer(overlay, engine)["kv_connector"] == "PdgateConnector"
        (events,) = (
            json.loads(arg.split("=", 1)[1])
            for arg in overlay.args(engine)
            if arg.startswith("--kv-events-config=")
        )
        for flag, key in (("kv-events", "endpoint"), ("kv-events-replay", "replay_endpoint")):
            check_template(flags[flag])
            assert flags[flag].rpartition(":")[2] == events[key].rpartition(":")[2]
    assert "api" in transfer(overlay, "prefill")["kv_connector_extra_config"]


def test_the_queue_is_one_for_decode_and_for_the_workers_beside_prefill(
    rendered: dict[str, Rendered],
) -> None:
    """And both call the model by one name, which is part of the queue's, and prove one secret."""
    overlay = rendered["pd-decode-first"]
    extra = transfer(overlay, "decode")["kv_connector_extra_config"]
    pod = overlay.of("Deployment", "prefill")["spec"]["template"]["spec"]
    (worker,) = pod["initContainers"]
    flags = dict(arg.removeprefix("--").split("=", 1) for arg in worker["args"])

    # Always, so that it runs as long as the pod does.
    assert worker["restartPolicy"] == "Always"
    assert worker["command"] == ["pdgate", "prefill-worker"]
    assert flags["queue"] == extra["queue"]
    (port,) = (port["port"] for port in overlay.of("Service", "redis")["spec"]["ports"])
    assert flags["queue"] == f"redis://redis:{port}/0"
    assert flags["model"] == overlay.args("decode")[0] == overlay.args("prefill")[0]
    assert flags["kv-secret-file"] == extra["kv_secret_file"]
    assert flags["kv"].rpartition(":")[2] == str(transfer(overlay, "prefill")["kv_port"])
    assert worker["image"] == container(overlay.of("Deployment", "prefill"))["image"]


def test_sglangs_prefill_is_asked_at_its_bootstrap_server(rendered: dict[str, Rendered]) -> None:
    overlay = rendered["pd-sglang"]
    flags = dict(arg.split("=", 1) for arg in overlay.args("prefill") if "=" in arg)
    (kv,) = (
        port["port"]
        for port in overlay.of("Service", "prefill")["spec"]["ports"]
        if port["name"] == "kv"
    )

    assert flags["--disaggregation-bootstrap-port"] == str(kv)
    for role in ("prefill", "decode"):
        own = dict(arg.split("=", 1) for arg in overlay.args(role) if "=" in arg)
        assert own["--disaggregation-mode"] == role
        name = "--disaggregation-transfer-backend"
        assert own[name] == flags[name]


def test_neurons_successor_goes_by_libfabric(rendered: dict[str, Rendered]) -> None:
    overlay = rendered["neuron-nixl"]
    for engine, role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        said = transfer(overlay, engine)
        assert (said["kv_connector"], said["kv_role"]) == ("NixlConnector", role)
        assert said["kv_connector_extra_config"] == {"backends": ["LIBFABRIC"]}
        limits = container(overlay.of("Deployment", engine))["resources"]["limits"]
        assert "nvidia.com/gpu" not in limits


@pytest.mark.parametrize(
    "name", ["pd-mooncake", "pd-kvt", "pd-decode-first", "pd-sglang", "neuron"]
)
def test_what_only_the_base_needs_is_gone(name: str, rendered: dict[str, Rendered]) -> None:
    for engine in ("prefill", "decode"):
        assert "NIXL" not in json.dumps(rendered[name].of("Deployment", engine)).upper()


def test_neuron_engines_and_the_gateway_meet_in_etcd(rendered: dict[str, Rendered]) -> None:
    overlay = rendered["neuron"]
    (port,) = (port["port"] for port in overlay.of("Service", "etcd")["spec"]["ports"])

    assert f"--etcd=http://etcd:{port}" in overlay.args("pdgate")
    for engine in ("prefill", "decode"):
        assert transfer(overlay, engine)["etcd"] == f"etcd:{port}"
        assert "labels" not in overlay.of("Service", engine)["metadata"]
    # Nothing is read of the cluster, so nothing may be.
    assert overlay.names("Role") == []
    assert overlay.names("RoleBinding") == []


def test_what_scales_is_there(with_components: Rendered) -> None:
    import yaml

    rules = yaml.safe_load((FOLDER / "components/autoscaling/adapter-rules.yaml").read_text())
    offered = {rule["name"]["as"] for rule in rules}
    scaled = [each for each in with_components.objects if each["kind"].startswith("Horizontal")]

    assert {each["spec"]["scaleTargetRef"]["name"] for each in scaled} == {
        "pdgate",
        "prefill",
        "decode",
    }
    for each in scaled:
        assert each["spec"]["scaleTargetRef"]["name"] in with_components.names("Deployment")
        for metric in each["spec"]["metrics"]:
            if metric["type"] == "Object":
                assert metric["object"]["metric"]["name"] in offered
                assert metric["object"]["describedObject"]["name"] in with_components.names(
                    "Service"
                )


def test_what_scales_has_no_number_that_applying_would_set_back(with_components: Rendered) -> None:
    for name in ("pdgate", "prefill", "decode"):
        assert "replicas" not in with_components.of("Deployment", name)["spec"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_engine_is_shipped_that_cannot_start(name: str, rendered: dict[str, Rendered]) -> None:
    started = rendered[name].starts()

    assert started or name == "pd-sglang"
    assert {command: why for command in started if (why := why_not(command))} == {}


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_engine_that_is_dead_for_good_is_started_again(
    name: str, rendered: dict[str, Rendered]
) -> None:
    for each in rendered[name].objects:
        if each["kind"] == "Deployment" and container(each)["name"] == "vllm":
            alive = container(each)["livenessProbe"]
            assert alive["httpGet"] == container(each)["startupProbe"]["httpGet"]


def test_the_gateway_is_scraped_where_it_serves_metrics(with_components: Rendered) -> None:
    monitor = with_components.of("ServiceMonitor", "pdgate")["spec"]
    service = with_components.of("Service", "pdgate")
    (endpoint,) = monitor["endpoints"]

    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    # As deploy/prometheus/prometheus.yaml says why.
    assert endpoint["honorLabels"] is True
    assert endpoint["relabelings"][0]["targetLabel"] == "gateway"


def test_the_rules_are_those_that_are_tested() -> None:
    """After a change: python -m deploy.prometheus.as_object."""
    assert as_object.TARGET.read_text(encoding="utf-8") == as_object.text()


def test_all_dashboards_are_brought(with_components: Rendered) -> None:
    brought = with_components.of("ConfigMap", "pdgate-dashboards")["data"]

    assert set(brought) == {path.name for path in (DEPLOY / "grafana").glob("*.json")}


def _without_stores(rendered: Rendered) -> Rendered:
    """Services that are no engine's and no gateway's have ports of their own kind."""
    return Rendered([each for each in rendered.objects if each["metadata"]["name"] != "redis"])


@pytest.mark.parametrize("name", ["pd-kvt", "pd-decode-first"])
def test_engines_of_our_connector_are_given_the_secret_that_they_read(
    name: str, rendered: dict[str, Rendered]
) -> None:
    for engine in ("prefill", "decode"):
        extra = transfer(rendered[name], engine)["kv_connector_extra_config"]
        pod = rendered[name].of("Deployment", engine)["spec"]["template"]["spec"]
        (mount,) = (
            one
            for one in pod["containers"][0]["volumeMounts"]
            if extra["kv_secret_file"].startswith(f"{one['mountPath']}/")
        )
        (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])

        assert mount["readOnly"]
        assert volume["secret"]["secretName"] == "pdgate-kv"
        # Beyond loopback there is no listening without it.
        assert extra["host"] == "0.0.0.0"


@pytest.mark.parametrize("name", OVERLAYS)
def test_engines_are_reached_by_the_gateway_and_each_other_alone(
    name: str, rendered: dict[str, Rendered]
) -> None:
    policy = rendered[name].of("NetworkPolicy", "engines")["spec"]
    pods = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in rendered[name].objects
        if each["kind"] == "Deployment"
    }

    def chosen(selector: Json) -> set[str]:
        wanted = selector["matchLabels"].items()
        return {pod for pod, labels in pods.items() if wanted <= labels.items()}

    engines = {pod for pod in pods if pod in ("prefill", "decode", "engine")}
    gateway, peers = policy["ingress"]
    assert chosen(policy["podSelector"]) == engines
    assert [chosen(one["podSelector"]) for one in gateway["from"]] == [{"pdgate"}]
    assert [chosen(one["podSelector"]) for one in peers["from"]] == [engines]
    # Of engines the gateway asks no KV, but Mooncake's bootstrap server is at the port called so.
    open_to_it = {one["port"] for one in gateway["ports"]}
    assert "http" in open_to_it
    assert ("kv" in open_to_it) == (name == "pd-mooncake")


@pytest.mark.parametrize("name", [*OVERLAYS, "all components"])
def test_whatever_is_no_gateway_is_reached_by_ours_alone(
    name: str, rendered: dict[str, Rendered], with_components: Rendered
) -> None:
    """Redis and etcd ask nobody who they are, and what they say is believed."""
    found = rendered.get(name, with_components)
    policies = [each["spec"] for each in found.objects if each["kind"] == "NetworkPolicy"]
    named: dict[int, set[str]] = {}
    for each in found.objects:
        if (
            each["kind"] not in ("Deployment", "StatefulSet")
            or each["metadata"]["name"] == "pdgate"
        ):
            continue
        labels = each["spec"]["template"]["metadata"]["labels"].items()
        (at,) = (
            at
            for at, one in enumerate(policies)
            if one["podSelector"]["matchLabels"].items() <= labels
        )
        named.setdefault(at, set()).update(port["name"] for port in container(each)["ports"])
    assert named
    for at, names in named.items():
        assert policies[at]["policyTypes"] == ["Ingress"]
        for rule in policies[at]["ingress"]:
            assert all(list(source) == ["podSelector"] for source in rule["from"])
            # A name that no port has would open nothing.
            assert {one["port"] for one in rule.get("ports", [])} <= names


@pytest.mark.parametrize(
    "page",
    [
        FOLDER / "overlays/pd-kvt/kustomization.yaml",
        FOLDER / "overlays/pd-decode-first/kustomization.yaml",
        DEPLOY.parent / "docs/operations/kubernetes.md",
    ],
)
def test_the_secret_that_engines_wait_for_is_made_by_one_command(
    page: Path, rendered: dict[str, Rendered]
) -> None:
    """kustomize makes none: what it generates of a file ends the rendering where that is missing."""
    (name, key) = re.findall(
        r"kubectl -n llm create secret generic (\S+) --from-literal=(\w+)=\"\$\(openssl rand -hex 32\)\"",
        page.read_text(encoding="utf-8"),
    )[0]
    for engine in ("prefill", "decode"):
        pod = rendered["pd-kvt"].of("Deployment", engine)["spec"]["template"]["spec"]
        (volume,) = (one for one in pod["volumes"] if "secret" in one)
        extra = transfer(rendered["pd-kvt"], engine)["kv_connector_extra_config"]

        assert volume["secret"]["secretName"] == name
        # Without `optional` the pod waits until it is there.
        assert "optional" not in volume["secret"]
        assert extra["kv_secret_file"].rpartition("/")[2] == key
