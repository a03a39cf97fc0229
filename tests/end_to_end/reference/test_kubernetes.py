"""A gateway told of nothing but a cluster whose API says where engines are; a token, TLS, and all."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.end_to_end.reference.callers import ask
from tests.end_to_end.reference.fleet import Engine, Fleet, Gateway
from tests.support.certificates import Authority
from tests.support.kubernetes import ApiServer, api_server
from tests.support.kubernetes_objects import endpoint_slice, pod

PROTOCOL, TRANSFER = "vllm-nixl", "tcp"
TOKEN = "eyJhbGciOiJSUzI1NiJ9.pdgate.signature"
LEAVES = {"ready": False, "serving": True, "terminating": True}


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def cluster(authority: Authority) -> Iterator[ApiServer]:
    with api_server(authority.signs("localhost", "IP:127.0.0.1")) as server:
        server.token = TOKEN
        yield server


@pytest.fixture
def flags(cluster: ApiServer, authority: Authority, tmp_path: Path) -> list[str]:
    """What `pdgate serve` is told; in a pod it needs the first two words."""
    (tmp_path / "token").write_text(TOKEN)
    options = {
        "url": cluster.url,
        "namespace": cluster.namespace,
        "token-file": tmp_path / "token",
        "ca-file": authority.cert,
    }
    said = [f"--directory-option={name}={value}" for name, value in options.items()]
    return ["--directory", "kubernetes", *said]


def run(cluster: ApiServer, engine: Engine, role: str, uid: str, **more: object) -> None:
    """Its pod is ready: a slice of its own, as if each were behind a Service of its own."""
    labels = {"pdgate.dev/role": role, "pdgate.dev/protocol": PROTOCOL}
    port = urlsplit(engine.url).port
    assert port is not None
    cluster.put(
        endpoint_slice(f"{role}-{uid}", labels, [pod("127.0.0.1", uid, **more)], {"http": port})
    )


def served(engine: Engine) -> float:
    return engine.metric("vllm:request_success_total")


def test_engines_behind_services_serve_also_while_the_api_is_away(
    fleet: Fleet, cluster: ApiServer, flags: list[str]
) -> None:
    pair = fleet.pair(PROTOCOL, TRANSFER)
    prefill, decode = pair.prefill, pair.decode
    before = served(prefill), served(decode)
    run(cluster, prefill, "prefill", "p0")
    run(cluster, decode, "decode", "d0")
    with fleet.serve(*flags) as gateway:
        assert ask(gateway)
        cluster.stop()
        state(gateway, "degraded")
        assert ask(gateway)
        cluster.start()
        state(gateway, "current")
        assert ask(gateway)

        run(cluster, decode, "decode", "d0", conditions=LEAVES)
        gateway.process.wait_until(lambda: not gateway.ready()["ready"] or None, "no pair")

    assert (served(prefill), served(decode)) == (before[0] + 3, before[1] + 3)


def state(gateway: Gateway, wanted: str) -> None:
    """Waits until /ready says so of the directory; it is 200 all the time."""

    def said() -> bool | None:
        answer = gateway.ready()
        assert answer["ready"]
        return answer["directory"] == {"state": wanted, "instances": 2} or None

    gateway.process.wait_until(said, f"a {wanted} directory")
