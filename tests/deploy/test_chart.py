"""The Helm chart, as helm renders it."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from pdgate import __version__
from pdgate.cluster.secret import checked
from pdgate.engine.command_check import why_not
from pdgate.protocols.instance import Role
from tests.deploy.rendering import CHART, NotRendered, Rendered, charted, container, linted
from tests.deploy.served import as_in_a_pod, found_behind, settings_of

pytestmark = pytest.mark.source

NOTHING: dict[str, Any] = {}
EVERYTHING = {
    "protocol": "vllm-kvt",
    "adaptive": True,
    "gateway": {
        "config": 'prefill_policy = "prefix_then_load"\n[timeouts]\nidle_seconds = 60\n',
        "args": ["--max-waiting=50"],
        "adminTokenSecret": "admin",
        "apiKeysSecret": "keys",
        "autoscaling": {"enabled": True},
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "service": {"annotations": {"a": "b"}},
    },
    "engines": {
        "args": ["--enable-prefix-caching"],
        "env": [{"name": "HF_HOME", "value": "/models"}],
        "both": {"replicas": 2, "args": ["--max-num-seqs=8"]},
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    },
    "redis": {"enabled": True},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
}


@pytest.mark.parametrize("values", [NOTHING, EVERYTHING], ids=["defaults", "everything"])
def test_kubernetes_knows_every_field(values: dict[str, Any]) -> None:
    charted(values).validate()


@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-mooncake", "vllm-kvt"])
def test_no_engine_is_shipped_that_cannot_start(protocol: str) -> None:
    started = charted({**EVERYTHING, "protocol": protocol}).starts()

    assert len(started) == 3
    assert [why for command in started for why in why_not(command)] == []


def test_helm_finds_nothing_wrong() -> None:
    assert "0 chart(s) failed" in linted(NOTHING)


def test_its_version_is_pdgate_s() -> None:
    import yaml

    said = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (said["version"], said["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("values", [NOTHING, EVERYTHING], ids=["defaults", "everything"])
def test_the_gateway_understands_its_flags(
    values: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = charted(values)
    gateway = container(rendered.of("Deployment", "pdgate"))
    files = _files(rendered, tmp_path)
    args = [arg if "/etc/" not in arg else _moved(arg, files) for arg in gateway["args"]]

    with as_in_a_pod(tmp_path, monkeypatch):
        settings = settings_of([*gateway["command"][1:], *args], monkeypatch)

    spec = rendered.of("Deployment", "pdgate")["spec"]["template"]["spec"]
    drain = settings.drain
    assert drain.notice_seconds + drain.grace_seconds < spec["terminationGracePeriodSeconds"]
    if values:
        assert settings.prefill_policy == "prefix_then_load"
        assert settings.timeouts.idle_seconds == 60
        assert settings.admission.waiting == 50
        assert settings.adaptive.enabled
        assert settings.redis == "redis://pdgate-redis:6379/0"


def _files(rendered: Any, folder: Path) -> dict[str, Path]:
    """What a pod has mounted, in a folder of the test's."""
    keys = f'[[api_keys]]\nname = "team-a"\nsha256 = "{"9" * 64}"\n'
    found = {"/etc/pdgate-admin/token": "t" * 32, "/etc/pdgate-keys/keys.toml": keys}
    if "pdgate" in rendered.names("ConfigMap"):
        data = rendered.of("ConfigMap", "pdgate")["data"]
        found["/etc/pdgate/pdgate.toml"] = data["pdgate.toml"]
    written = {}
    for number, (path, text) in enumerate(found.items()):
        written[path] = folder / f"mounted-{number}{Path(path).suffix}"
        written[path].write_text(text)
    return written


def _moved(arg: str, files: dict[str, Path]) -> str:
    flag, _, path = arg.partition("=")
    return f"{flag}={files[path]}"


@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-mooncake", "vllm-kvt"])
async def test_the_engines_are_found(protocol: str) -> None:
    rendered = charted({"protocol": protocol, "engines": {"both": {"replicas": 1}}})
    (selector,) = (
        arg.partition("selector=")[2]
        for arg in rendered.args("pdgate")
        if arg.startswith("--directory-option=selector=")
    )

    engines = await found_behind(rendered, selector)

    assert {name: engine.role for name, engine in engines.items()} == {
        "pdgate-prefill": Role.PREFILL,
        "pdgate-decode": Role.DECODE,
        "pdgate-both": Role.BOTH,
    }
    assert {engine.protocol for engine in engines.values()} == {protocol}
    wanted = {"vllm-nixl": "", "vllm-mooncake": "8998", "vllm-kvt": "28000"}[protocol]
    assert engines["pdgate-prefill"].kv.rpartition(":")[2] == wanted


async def test_a_gateway_does_not_take_engines_of_another_release() -> None:
    rendered = charted(NOTHING, release="blue")

    assert await found_behind(rendered, "pdgate.dev/role,app.kubernetes.io/instance=green") == {}


@pytest.mark.parametrize(
    ("protocol", "connector"),
    [
        ("vllm-nixl", "NixlConnector"),
        ("vllm-mooncake", "MooncakeConnector"),
        ("vllm-kvt", "PdgateConnector"),
    ],
)
def test_engines_are_told_how_kv_goes(protocol: str, connector: str) -> None:
    rendered = charted({"protocol": protocol})

    for engine, role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
        (said,) = (
            json.loads(arg.partition("=")[2])
            for arg in rendered.args(f"pdgate-{engine}")
            if arg.startswith("--kv-transfer-config=")
        )
        assert (said["kv_connector"], said["kv_role"]) == (connector, role)
        # A name that stays over a restart gives wrong answers (docs/wire/vllm-nixl.md).
        assert "engine_id" not in said
        alive = container(rendered.of("Deployment", f"pdgate-{engine}"))["livenessProbe"]
        assert alive["httpGet"]["path"] == "/health"


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"protocol": "nixl"}, "protocol"),
        ({"gateway": {"args": ["max-waiting=50"]}}, "args"),
        ({"engine": {}}, "engine"),
        ({"redis": {"url": "localhost:6379"}}, "url"),
        ({"gateway": {"replicas": 0}}, "replicas"),
    ],
)
def test_a_wrong_value_is_named(values: dict[str, Any], key: str) -> None:
    with pytest.raises(NotRendered, match=key):
        charted(values)


def test_engines_of_our_connector_share_a_secret_that_the_chart_makes() -> None:
    rendered = charted({"protocol": "vllm-kvt"})

    made = base64.b64decode(rendered.of("Secret", "pdgate-kv")["data"]["secret"]).decode()
    assert checked([made], "the chart") == [made]
    assert _mounted_secrets(rendered) == {"pdgate-kv"}
    other = base64.b64decode(
        charted({"protocol": "vllm-kvt"}).of("Secret", "pdgate-kv")["data"]["secret"]
    )
    assert other.decode() != made


def test_a_secret_that_exists_is_taken() -> None:
    rendered = charted({"protocol": "vllm-kvt", "engines": {"kvSecret": "ours"}})

    assert rendered.names("Secret") == []
    assert _mounted_secrets(rendered) == {"ours"}
    assert charted(NOTHING).names("Secret") == []


def _mounted_secrets(rendered: Rendered) -> set[str]:
    found = set()
    for engine in ("prefill", "decode"):
        pod = rendered.of("Deployment", f"pdgate-{engine}")["spec"]["template"]["spec"]
        (volume,) = (one for one in pod["volumes"] if one["name"] == "kv-secret")
        (mount,) = (
            one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "kv-secret"
        )
        (said,) = (
            json.loads(arg.partition("=")[2])
            for arg in rendered.args(f"pdgate-{engine}")
            if arg.startswith("--kv-transfer-config=")
        )
        extra = said["kv_connector_extra_config"]
        assert extra["kv_secret_file"] == f"{mount['mountPath']}/secret"
        found.add(volume["secret"]["secretName"])
    return found


@pytest.mark.parametrize("protocol", ["vllm-nixl", "vllm-mooncake", "vllm-kvt"])
def test_engines_are_reached_by_the_gateway_and_each_other_alone(protocol: str) -> None:
    scrapes = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    rendered = charted({"protocol": protocol, "networkPolicy": {"from": [scrapes]}})

    policy = rendered.of("NetworkPolicy", "pdgate-engines")["spec"]

    gateway, peers, more = policy["ingress"]
    (door,) = gateway["from"]
    assert door["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
    assert ({"port": "kv"} in gateway["ports"]) == (protocol == "vllm-mooncake")
    (engines,) = peers["from"]
    assert engines["podSelector"] == policy["podSelector"]
    assert more == {"from": [scrapes]}
    assert charted({"networkPolicy": {"enabled": False}}).names("NetworkPolicy") == []


def test_the_redis_that_comes_along_is_reached_by_the_release_alone() -> None:
    policy = charted({"redis": {"enabled": True}}).of("NetworkPolicy", "pdgate-redis")["spec"]

    (rule,) = policy["ingress"]
    (source,) = rule["from"]
    (who,) = source["podSelector"]["matchExpressions"]
    assert set(who["values"]) == {"gateway", "prefill", "decode", "both"}
    assert rule["ports"] == [{"port": "redis"}]
    off = {"redis": {"enabled": True}, "networkPolicy": {"enabled": False}}
    assert charted(off).names("NetworkPolicy") == []
