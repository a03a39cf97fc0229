"""A gateway in front of engines that count: what operators see of the hand-over."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pdgate.gateway.config.sections import EngineMetricsSection
from pdgate.protocols.instance import Role
from tests.support.fleet import ANSWER, PATIENCE_SECONDS, Engine, Gateway, as_json, gateway_of
from tests.support.raw_server import Peer, reply

PATH = "/admin/instances"
TOKEN = "correct-horse-battery-staple"
PROMPT_TOKENS = 100


class Telling(Engine):
    """Decode whose /metrics say what its calls did; `takes_over` KV, or computes all of it again."""

    def __init__(self, *, takes_over: bool) -> None:
        super().__init__(Role.DECODE, self._answer)
        self.told = asyncio.Event()
        self._takes_over = takes_over
        self._calls = 0
        self._count()

    async def serve(self, peer: Peer) -> None:
        await super().serve(peer)
        if b"/metrics" in peer.request.line:
            self.told.set()

    async def _answer(self, peer: Peer) -> None:
        self._calls += 1
        self._count()
        await peer.send(as_json(ANSWER))

    def _count(self) -> None:
        loaded = self._calls * (PROMPT_TOKENS - 1) if self._takes_over else 0
        computed = self._calls * PROMPT_TOKENS - loaded
        source = "vllm:prompt_tokens_by_source_total{source="
        page = (
            f'{source}"local_compute"}} {computed}\n{source}"external_kv_transfer"}} {loaded}\n'
            f'{source}"local_cache_hit"}} 0\nvllm:time_to_first_token_seconds_count {self._calls}\n'
            "vllm:kv_cache_usage_perc 0.25\nvllm:num_requests_running 0\n"
        )
        self.probes["/metrics"] = reply(page.encode())


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    return str(path)


async def engines(gateway: Gateway) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {TOKEN}"}
    found = (await gateway.http.get(PATH, headers=headers)).json()
    return {engine["role"]: engine for engine in found}


async def decode_once_verified(gateway: Gateway, decode: Telling) -> dict[str, Any]:
    """What is said of decode when one call has been judged."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        await decode.told.wait()
        while (await engines(gateway))["decode"]["told_seconds_ago"] is None:
            pass
        assert (await gateway.chat()).status_code == 200
        # What it tells of its load is soon stale, on a busy machine before it is asked for.
        while (found := (await engines(gateway))["decode"])["kv"]["result"] is None or (
            found["load"] is None
        ):
            pass
    return dict(found)


@pytest.mark.parametrize(
    ("takes_over", "result", "cause"),
    [(True, "verified", None), (False, "recomputed", "no_connector")],
)
async def test_whether_kv_arrives_is_known_after_the_next_page(
    takes_over: bool, result: str, cause: str | None, token_file: str
) -> None:
    decode = Telling(takes_over=takes_over)
    often = EngineMetricsSection(interval_seconds=0.02)
    async with gateway_of(
        Engine(Role.PREFILL), decode, admin_token_file=token_file, engine_metrics=often
    ) as gateway:
        found = await decode_once_verified(gateway, decode)
        metrics = await gateway.metrics()

    assert (found["kv"]["result"], found["kv"]["cause"]) == (result, cause)
    assert found["load"]["kv_free"] == 0.75
    counted = {
        labels[1]: value
        for (name, *labels), value in metrics.items()
        if name == "pdgate_kv_verified_tokens_total"
    }
    assert counted == found["kv"]["tokens"]
    assert sum(counted.values()) == PROMPT_TOKENS
    wrong = {key[1:] for key in metrics if key[0] == "pdgate_instance_misconfigured"}
    assert wrong == ({(cause, "decode-0")} if cause else set())


async def test_an_engine_that_does_not_tell_is_known_not_to(token_file: str) -> None:
    async with gateway_of(
        Engine(Role.PREFILL), Engine(Role.DECODE), admin_token_file=token_file
    ) as gateway:
        for engine in (await engines(gateway)).values():
            assert (engine["told_seconds_ago"], engine["load"], engine["kv"]["result"]) == (
                None,
                None,
                None,
            )


async def test_nobody_is_asked_where_that_is_off(token_file: str) -> None:
    off = EngineMetricsSection(interval_seconds=0)
    async with gateway_of(
        Engine(Role.DECODE), admin_token_file=token_file, engine_metrics=off
    ) as gateway:
        assert "kv" not in (await engines(gateway))["decode"]
