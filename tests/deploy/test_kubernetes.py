"""The manifests in deploy/kubernetes/base: what Kubernetes checks of them, and what the gateway relies on.

Nothing here runs a cluster. Slices are made of the Services as the cluster's controller makes
them (Kubernetes 1.33, staging/src/k8s.io/endpointslice/utils.go: labels of the Service, and the
container ports that its targetPorts name), and served by the server that the directory is tested with.
"""

from pathlib import Path

import pytest

from pdgate import __version__
from pdgate.cluster.kubernetes import wire
from pdgate.protocols.instance import Role
from pdgate.protocols.place import Place
from tests.deploy.rendering import KUBERNETES, Json, Rendered, container
from tests.deploy.served import as_in_a_pod, found_behind, settings_of
from tests.support.kubernetes_objects import endpoint_slice, pod

pytestmark = pytest.mark.source

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base"


@pytest.fixture(scope="module")
def kustomization() -> Json:
    (said,) = _read("kustomization.yaml")
    return said


@pytest.fixture(scope="module")
def objects(kustomization: Json) -> dict[tuple[str, str], Json]:
    """(kind, name) -> what is applied."""
    found = [each for name in kustomization["resources"] for each in _read(name)]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def _read(name: str) -> list[Json]:
    import yaml

    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def test_every_file_is_applied(kustomization: Json) -> None:
    files = {path.name for path in FOLDER.iterdir()}

    assert {*kustomization["resources"], "kustomization.yaml"} == files


def test_kubernetes_knows_every_field(objects: dict[tuple[str, str], Json]) -> None:
    import kubernetes_validate

    for each in objects.values():
        kubernetes_validate.validate(each, KUBERNETES, strict=True)


def test_all_is_in_one_namespace(kustomization: Json, objects: dict[tuple[str, str], Json]) -> None:
    namespace = kustomization["namespace"]
    assert ("Namespace", namespace) in objects

    for (kind, _), each in objects.items():
        assert each["metadata"].get("namespace") == (None if kind == "Namespace" else namespace)


def test_the_image_is_of_this_version(objects: dict[tuple[str, str], Json]) -> None:
    assert container(objects["Deployment", "pdgate"])["image"] == f"pdgate:{__version__}"


def test_selectors_find_their_pods(objects: dict[tuple[str, str], Json]) -> None:
    pods = {
        name: each["spec"]["template"]["metadata"]["labels"]
        for (kind, name), each in objects.items()
        if kind == "Deployment"
    }
    for (kind, name), each in objects.items():
        if kind in ("Deployment", "Service", "PodDisruptionBudget"):
            selector = each["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            chosen = [pod for pod, labels in pods.items() if wanted.items() <= labels.items()]
            assert chosen == [name], (kind, name)


def test_the_gateway_may_read_what_it_reads_and_nothing_else(
    objects: dict[tuple[str, str], Json],
) -> None:
    role = objects["Role", "pdgate-directory"]
    binding = objects["RoleBinding", "pdgate-directory"]
    account = objects["ServiceAccount", "pdgate"]["metadata"]
    gateway = objects["Deployment", "pdgate"]["spec"]["template"]["spec"]

    assert role["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        }
    ]
    assert wire.path("llm").startswith("/apis/discovery.k8s.io/")
    assert wire.path("llm").endswith("/namespaces/llm/endpointslices")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", **account}]
    assert gateway["serviceAccountName"] == account["name"]
    for engine in ("prefill", "decode"):
        pods = objects["Deployment", engine]["spec"]["template"]["spec"]
        assert pods["automountServiceAccountToken"] is False


def test_the_gateway_understands_its_flags(
    objects: dict[tuple[str, str], Json], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = objects["Deployment", "pdgate"]
    gateway = container(deployment)
    program, *command = gateway["command"]
    assert program == "pdgate"

    with as_in_a_pod(tmp_path, monkeypatch):
        settings = settings_of([*command, *gateway["args"]], monkeypatch)

    assert settings.directory == "kubernetes"
    assert settings.listen.host == "0.0.0.0"
    assert gateway["ports"] == [{"name": "http", "containerPort": settings.listen.port}]
    grace_seconds = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert settings.drain.notice_seconds + settings.drain.grace_seconds < grace_seconds


@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_an_engine_ends_after_the_calls_that_it_has(
    name: str, objects: dict[tuple[str, str], Json]
) -> None:
    deployment = objects["Deployment", name]
    _, seconds = container(deployment)["lifecycle"]["preStop"]["exec"]["command"]

    assert int(seconds) < deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]


async def test_the_gateway_finds_the_engines_behind_the_services(
    objects: dict[tuple[str, str], Json],
) -> None:
    place = Place("node-1", zone="east-1a")

    found = await found_behind(Rendered(list(objects.values())))

    assert {
        name: (engine.role, engine.protocol, engine.port) for name, engine in found.items()
    } == {
        "prefill": (Role.PREFILL, "vllm-nixl", 8000),
        "decode": (Role.DECODE, "vllm-nixl", 8000),
    }
    assert {engine.place for engine in found.values()} == {place}


def test_the_slices_of_the_tests_are_as_kubernetes_has_them() -> None:
    import kubernetes_validate

    labels = {"pdgate.dev/role": "decode"}
    for said in (
        endpoint_slice("decode-x7", labels, [pod("10.0.0.2", "9f3c")]),
        endpoint_slice("decode-x8", labels, [pod("fd00::2")], {"http": 1, "kv": 2}, family="IPv6"),
    ):
        kind = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
        kubernetes_validate.validate(kind | said, KUBERNETES, strict=True)
