"""deploy/kubernetes/endpoint-picker, as kubectl renders it and as pdgate reads its flags."""

from functools import partial
from pathlib import Path

import pytest

from pdgate.cluster.kubernetes import pool
from pdgate.cluster.kubernetes.access import in_pod
from pdgate.cluster.kubernetes.objectives import OBJECTIVES
from pdgate.cluster.kubernetes.pool import PODS, POOLS
from tests.deploy.rendering import DEPLOY, Rendered, container, kustomized
from tests.deploy.served import as_in_a_pod, settings_of

pytestmark = pytest.mark.source

NOT_OF_KUBERNETES = {"InferencePool", "InferenceObjective"}
"""The extension's own, whose schemas are in no package."""


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return kustomized(DEPLOY / "kubernetes" / "endpoint-picker")


def test_kubernetes_knows_every_field_of_its_own_objects(rendered: Rendered) -> None:
    Rendered([one for one in rendered.objects if one["kind"] not in NOT_OF_KUBERNETES]).validate()


def test_the_pool_names_the_service_and_the_picker_the_pool(
    rendered: Rendered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = rendered.of("Deployment", "pdgate-epp")
    started = container(deployment)
    with as_in_a_pod(tmp_path, monkeypatch):
        monkeypatch.setattr(pool, "in_pod", partial(in_pod, folder=tmp_path))
        settings = settings_of([*started["command"][1:], *started["args"]], monkeypatch)

    (name,) = rendered.names("InferencePool")
    wanted = rendered.of("InferencePool", name)["spec"]["endpointPickerRef"]
    service = rendered.of("Service", wanted["name"])["spec"]
    assert service["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    assert settings.epp.listen.endswith(f":{wanted['port']['number']}")
    assert wanted["port"]["number"] in [port["port"] for port in service["ports"]]
    assert settings.directory == "inference-pool"
    assert settings.directory_options == (f"pool={name}",)
    objective = rendered.of("InferenceObjective", "background")["spec"]
    assert objective["poolRef"]["name"] == name


def test_the_picker_may_read_what_it_reads(rendered: Rendered) -> None:
    rules = rendered.of("Role", "pdgate-epp")["rules"]
    granted = {(rule["apiGroups"][0], rule["resources"][0]): rule["verbs"] for rule in rules}

    assert granted == {
        (_group(POOLS), "inferencepools"): ["get"],
        (_group(PODS), "pods"): ["list"],
        (_group(OBJECTIVES), "inferenceobjectives"): ["list"],
    }


def _group(path: str) -> str:
    """Of an address of the API; "" for its core."""
    return path.split("/")[2] if path.startswith("/apis/") else ""
