"""Who we are to the API server, whom we believe to be it, and how its answers are read."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdgate.cluster.directory import Left, Listed, Lost
from pdgate.cluster.kubernetes.access import KubernetesAccess
from pdgate.cluster.kubernetes.directory import Kubernetes
from pdgate.cluster.kubernetes.http import KubernetesHttp
from pdgate.cluster.kubernetes.wire import KubernetesError
from tests.cluster.kubernetes.services import QUICK, access, service, slice_name
from tests.cluster.watching import P, following
from tests.support.certificates import Authority
from tests.support.kubernetes import Answer, ApiServer, Asked, api_server
from tests.support.kubernetes_objects import status

TOKENS = [f"eyJhbGciOiJSUzI1NiJ9.{number}.signature" for number in range(2)]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with api_server() as server:
        yield server


def is_watch(asked: Asked) -> bool:
    return asked.is_watch


async def test_a_token_that_was_replaced_is_used(server: ApiServer, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKENS[0])
    server.token = TOKENS[0]
    async with following(Kubernetes(access(server, token_file=str(token)), QUICK)) as told:
        assert await told.next() == Listed({})
        server.token = TOKENS[1]
        lost = await told.first(Lost)
        assert "401 Unauthorized" in lost.why
        assert TOKENS[0] not in lost.why
        token.write_text(TOKENS[1])

        assert await told.first(Listed) == Listed({})


async def test_a_token_that_is_gone_is_a_loss_and_no_failure(
    server: ApiServer, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    async with following(Kubernetes(access(server, token_file=str(token)), QUICK)) as told:
        lost = await told.first(Lost)
        assert "cannot read" in lost.why
        token.write_text(TOKENS[0])

        assert await told.first(Listed) == Listed({})


async def test_what_the_account_may_not_do_is_said(server: ApiServer) -> None:
    message = 'endpointslices.discovery.k8s.io is forbidden: User "x" cannot list resource'
    no = Answer(403, json.dumps(status(403, "Forbidden", message)).encode())
    server.answer = lambda _: no
    async with following(Kubernetes(access(server), QUICK)) as told:
        lost = await told.first(Lost)

    assert lost.why == f"{server.url}: 403 {message}"


async def test_a_server_may_ask_to_be_left_alone(server: ApiServer) -> None:
    busy = Answer(429, b"Too many requests, please try again later.\n", {"retry-after": "7"})
    server.answer = lambda _: busy
    async with KubernetesHttp(access(server)) as http:
        with pytest.raises(KubernetesError, match="429") as error:
            await http.contents()

    assert error.value.wait_seconds == 7


async def test_the_server_must_be_the_right_one(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "theirs")
    with api_server(ours.signs("localhost", "IP:127.0.0.1")) as server:
        server.put(service(P))
        async with following(Kubernetes(access(server, ca_file=ours.cert), QUICK)) as told:
            assert await told.next() == Listed({P.key: P})
            await server.heard(is_watch)
            server.delete(slice_name(P.key))
            assert await told.next() == Left(P.key)
        async with following(Kubernetes(access(server, ca_file=theirs.cert), QUICK)) as told:
            lost = await told.first(Lost)

    assert "CERTIFICATE_VERIFY_FAILED" in lost.why


async def test_certificates_that_are_gone_are_a_loss_and_no_failure(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "ca.crt")
    cluster = KubernetesAccess("https://127.0.0.1:1", "llm", ca_file=nowhere)
    async with following(Kubernetes(cluster, QUICK)) as told:
        lost = await told.first(Lost)

    assert nowhere in lost.why
