"""What fails for want of something of this host, and is no engine's fault."""

import errno
import socket
import sys
from functools import partial

import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pdgate.gateway.upstream.shortage import is_ours
from pdgate.lab.chaos import running, until
from pdgate.protocols.call import CHAT
from pdgate.protocols.instance import Role
from tests.support.fleet import ANSWER, PATIENCE_SECONDS, Engine, as_json, question, says
from tests.support.raw_server import raw_server
from tests.support.shortage import no_descriptor_left

PDGATE = (sys.executable, "-m", "pdgate")

ONCE = says(as_json(ANSWER, b"200 OK", b"connection: close"))
"""Each call needs a connection of its own."""


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL])
def test_a_shortage_is_told_from_an_engine_that_is_away(code: int) -> None:
    assert is_ours(OSError(code, "no"))
    assert not is_ours(ConnectionRefusedError(errno.ECONNREFUSED, "no"))
    assert not is_ours(TimeoutError())
    assert not is_ours(OSError(errno.EHOSTUNREACH, "no"))


def test_a_name_that_no_descriptor_is_left_to_look_up_is_no_engine_that_is_away() -> None:
    unknown = socket.gaierror(socket.EAI_AGAIN, "try again")
    several = OSError("Multiple exceptions: [Errno 24] no, [Errno 24] no")
    assert not is_ours(unknown)
    assert not is_ours(several)
    with no_descriptor_left():
        assert is_ours(unknown)
        assert is_ours(several)


async def test_no_engine_is_blamed_for_a_shortage_of_ours() -> None:
    async with (
        raw_server(Engine(Role.PLAIN, ONCE).serve) as engine,
        running(
            [*PDGATE, "serve", "--port", "0", "--plain", engine.url, "--health-interval", "0.05"],
            ready="pdgate listens on ",
        ) as gateway,
        # One connection, which is there before.
        httpx2.AsyncClient(
            base_url=gateway.ready_line.split()[-1],
            trust_env=False,
            timeout=PATIENCE_SECONDS,
            limits=httpx2.Limits(keepalive_expiry=None),
        ) as http,
    ):
        await until(partial(ready, http), "the engine to be up")
        with no_descriptor_left(gateway.pid):
            answers = [await http.post(CHAT, json=question()) for _ in range(5)]
            await until(partial(short, http, "looks"), "looks that cannot be made")
            assert await short(http, "calls") == 5
            said = (await http.get("/metrics")).text
        assert [answer.status_code for answer in answers] == [503] * 5
        assert answers[0].json()["error"]["code"] == "gateway_short"
        assert int(answers[0].headers["retry-after"]) > 0
        assert states(said) == {"up"}
        assert (await http.post(CHAT, json=question())).status_code == 200


async def ready(http: httpx2.AsyncClient) -> bool:
    return (await http.get("/ready")).status_code == 200


async def short(http: httpx2.AsyncClient, of: str) -> float:
    return sum(
        sample.value
        for sample in samples((await http.get("/metrics")).text)
        if sample.name == "pdgate_gateway_short_total" and sample.labels["of"] == of
    )


def states(said: str) -> set[str]:
    return {
        sample.labels["state"]
        for sample in samples(said)
        if sample.name == "pdgate_instance_state" and sample.value
    }


def samples(said: str) -> list[Sample]:
    families = text_string_to_metric_families(said)
    return [sample for family in families for sample in family.samples]
