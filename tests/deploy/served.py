"""What the gateway makes of the flags in a manifest, and of the labels of its Services."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.cluster.directory import Listed
from pdgate.cluster.kubernetes import directory
from pdgate.cluster.kubernetes.access import in_pod
from pdgate.cluster.member import Member
from pdgate.gateway import server as gateway_server
from pdgate.gateway.config import Settings
from tests.cluster.kubernetes.services import access
from tests.cluster.watching import following
from tests.deploy.rendering import Json, Rendered, container
from tests.support.certificates import Authority
from tests.support.kubernetes import api_server
from tests.support.kubernetes_objects import endpoint_slice, pod


@contextmanager
def as_in_a_pod(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (folder / "token").write_text("eyJhbGciOiJSUzI1NiJ9.pdgate.signature")
    (folder / "namespace").write_text("llm")
    (folder / "ca.crt").write_text(Path(Authority(folder).cert).read_text())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(directory, "in_pod", partial(in_pod, folder=folder))
    yield


def settings_of(command: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """`command` without the program's name; nothing is started."""
    served: list[Settings] = []
    monkeypatch.setattr(gateway_server, "serve", lambda settings, _: served.append(settings))
    result = CliRunner().invoke(app, list(command))
    assert result.exit_code == 0, result.output
    (settings,) = served
    return settings


async def found_behind(rendered: Rendered, selector: str = "") -> dict[str, Member]:
    """Name of the pod -> the engine that the gateway takes it for."""
    pods = {
        each["metadata"]["name"]: each for each in rendered.objects if each["kind"] == "Deployment"
    }
    addresses = {name: f"10.0.0.{number}" for number, name in enumerate(sorted(pods))}
    with api_server() as server:
        for each in rendered.objects:
            if each["kind"] == "Service":
                name = _behind(each, pods)
                server.put(_slice(each, pods[name], addresses[name]))
        asked = access(server)
        if selector:
            asked = replace(asked, selector=selector)
        async with following(directory.Kubernetes(asked)) as told:
            listed = await told.first(Listed)
    assert isinstance(listed, Listed)
    hosts = {address: name for name, address in addresses.items()}
    return {hosts[member.host]: member for member in listed.members.values()}


def _behind(service: Json, pods: dict[str, Json]) -> str:
    wanted = service["spec"]["selector"].items()
    (name,) = (
        name
        for name, each in pods.items()
        if wanted <= each["spec"]["template"]["metadata"]["labels"].items()
    )
    return name


def _slice(service: Json, deployment: Json, address: str) -> Json:
    numbers = {port["name"]: port["containerPort"] for port in container(deployment)["ports"]}
    ports = {port["name"]: numbers[port["targetPort"]] for port in service["spec"]["ports"]}
    labels = service["metadata"].get("labels", {})
    name = service["metadata"]["name"]
    return endpoint_slice(f"{name}-x7k2p", labels, [pod(address, name)], ports)
