"""Engines whose ranks are processes answer as the single engine does, whatever ranks they meet.

The cores are real, and so are the ranks' processes, with their regions, movers and ports; only HTTP is left out, which
tests/end_to_end/reference/test_shards.py has.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import pytest

from pdgate.engine.pace import StepPace
from pdgate.engine.ranks import crew
from pdgate.engine.request import Output, Sampling
from pdgate.forwarders.base import Mode
from pdgate.protocols.dialects import decode_first
from tests.support.core_pairs import Crossing, Row, Side, until
from tests.support.engine_cores import GREEDY, ask, engine, tokens_of
from tests.support.kv_backends import require
from tests.support.metaserver import Metaserver
from tests.support.ranked_engines import Ranks, alone, ended_for_good, holds_nothing, pids, ranked
from tests.support.redis import redis_server
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

ASKED = {
    "The quick brown fox jumps over the lazy dog, and then over another.": replace(
        GREEDY, max_tokens=6
    ),
    "One whose beginning nobody has cached, and whose tokens are drawn with a seed.": Sampling(
        max_tokens=6, temperature=1.0, seed=11, ignore_eos=True
    ),
}
"""Prompts of several blocks, the last of them not full, and how to answer."""


NIXL = Row("vllm-nixl", Mode.STAGED)
KVT, KVT_STAGED = Row("vllm-kvt", Mode.BATCH), Row("vllm-kvt", Mode.STAGED)
SGLANG, OFFLOAD = Row("sglang", Mode.BATCH), Row("offload-p2p", Mode.BATCH)
MORI_READS = Row("mori-io", Mode.STAGED, "read")
MORI_WRITES = Row("mori-io", Mode.BATCH, "write")
MOONCAKE = {one: Row("vllm-mooncake", Mode.BATCH, one) for one in "abcd"}
TPU = Row("tpu", Mode.STAGED)
CONTEXT_FIRST = Row("tensorrt-llm", Mode.STAGED, "context-first")
GENERATION_FIRST = Row("tensorrt-llm", Mode.BATCH, "generation-first")
BACKENDS = ("shm", "tcp", "mooncake", "nixl")
LAYERWISE, QUEUED = Row("ascend-layerwise", Mode.BATCH), Row("decode-first", Mode.BATCH)
FIRST_TOKEN_COMES = (SGLANG, CONTEXT_FIRST, GENERATION_FIRST)
"""Prefill hands it over beside the KV of the whole prompt."""
ROWS = [
    *(NIXL, KVT, KVT_STAGED, SGLANG, OFFLOAD, MORI_READS, MORI_WRITES, *MOONCAKE.values()),
    *(TPU, CONTEXT_FIRST, GENERATION_FIRST, LAYERWISE, QUEUED),
]
SMALL = [Ranks(), Ranks(tp=2), Ranks(pp=2)]
LARGE = [(Ranks(tp=2, pp=2), Ranks(tp=2)), (Ranks(tp=4), Ranks(tp=2)), (Ranks(tp=2), Ranks(pp=3))]


class Layerwise(Crossing):
    """As a gateway sends it: prefill is asked for what decode has posted to the metaserver."""

    def answer(
        self, prompt: str, sampling: Sampling, id: str = "c7-1", *, at_decode: str = ""
    ) -> list[Output]:
        with closing(Metaserver()) as meta:
            params = {"do_remote_prefill": True, "metaserver": meta.url}
            to_decode = replace(ask(id, prompt, sampling), wire_id=id, params=params)
            self.decode.core.submit(to_decode)
            posted = meta.posts.get(timeout=PATIENCE_SECONDS)
            one = replace(sampling, max_tokens=1)
            self.prefill.engine.answer(replace(ask(id, prompt, one), wire_id=id, params=posted))
            return self.decode.engine.answers(id)[id]


def crossing_of(row: Row, prefill: Side, decode: Side) -> Crossing:
    return (Layerwise if row == LAYERWISE else Crossing)(row, prefill, decode)


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


@pytest.fixture
def queue(row: Row, request: pytest.FixtureRequest) -> str:
    """URL of the prefill queue, where there is one."""
    return str(request.getfixturevalue("redis_url")) if row == QUEUED else ""


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    alone = engine()
    alone.core.start()
    found = {prompt: alone.tokens(ask(prompt, prompt, how)) for prompt, how in ASKED.items()}
    alone.core.stop()
    return found


@pytest.mark.matrix("row", "backend", "prefill", "decode")
@pytest.mark.parametrize("decode", SMALL, ids=str)
@pytest.mark.parametrize("prefill", SMALL, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_answer_is_the_single_engines(
    row: Row,
    backend: str,
    prefill: Ranks,
    decode: Ranks,
    expected: dict[str, list[int]],
    queue: str,
) -> None:
    check(row, backend, prefill, decode, expected, queue)


@pytest.mark.matrix
@pytest.mark.parametrize(("prefill", "decode"), LARGE, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_so_it_is_with_more_ranks(
    row: Row,
    backend: str,
    prefill: Ranks,
    decode: Ranks,
    expected: dict[str, list[int]],
    queue: str,
) -> None:
    check(row, backend, prefill, decode, expected, queue)


def check(
    row: Row, backend: str, p_ranks: Ranks, d_ranks: Ranks, expected: dict[str, list[int]], url: str
) -> None:
    require(backend)
    found = {}
    lost: list[str] = []
    with ExitStack() as stack:
        prefill = ranked(stack, "prefill", row, backend, p_ranks, lost, url)
        decode = ranked(stack, "decode", row, backend, d_ranks, lost, url)
        crossing = crossing_of(row, prefill, decode)
        for number, (prompt, sampling) in enumerate(ASKED.items()):
            found[prompt] = tokens_of(crossing.answer(prompt, sampling, f"c{number}-1"))
            until(prefill.core.told, "release")

        assert found == expected
        lengths = [len(ask("", prompt).prompt) for prompt in ASKED]
        # But the last token of each, where prefill does not hand the one behind it over.
        computed = 0 if row in FIRST_TOKEN_COMES else len(lengths)
        assert decode.stats.prompts_from_peer == sum(lengths) - computed
        assert decode.stats.prompts_computed == computed
        for one in (prefill, decode):
            # A rank says later that it has let go.
            wait_until(partial(holds_nothing, one), "no page in use")
        if url:
            up = "pdgate_prefill_queue_up"
            wait_until(
                lambda: decode.connector.gauges().get(up, ("", 0))[1] == 1, "the queue's metrics"
            )
    assert not lost


def test_a_rank_that_is_killed_ends_its_engine_and_no_page_stays_in_use() -> None:
    """Decode's, while the prompt is being computed for it."""
    lost: list[str] = []
    with ExitStack() as stack:
        prefill = alone(stack, "prefill", KVT, StepPace(prefill_seconds=1.0))
        decode = ranked(stack, "decode", KVT, "tcp", Ranks(tp=2), lost)
        _, to_decode = Crossing(KVT, prefill, decode).requests("A prompt to be read.", GREEDY)
        asked = to_decode(None)
        decode.core.submit(asked)
        until(decode.asked, "start")

        os.kill(pids(decode)[1], signal.SIGKILL)

        last = decode.engine.answers(asked.id)[asked.id][-1]
        assert last.refusal is not None or last.finish is not None
        ended_for_good(decode, lost)
        assert f"rank 1 (pid {pids(decode)[1]}) has ended: killed by signal 9" in lost[0]
        wait_until(lambda: prefill.used() == 0, "prefill's pages are free")


@pytest.mark.parametrize("row", [LAYERWISE, QUEUED], ids=str)
def test_a_call_that_ends_while_no_prefill_has_come_leaves_no_page_in_use(
    row: Row, queue: str
) -> None:
    """The first rank waits for prefill, and the other one for the first."""
    lost: list[str] = []
    with ExitStack() as stack, closing(Metaserver()) as meta:
        decode = ranked(stack, "decode", row, "tcp", Ranks(tp=2), lost, queue)
        params = {"do_remote_prefill": True, "metaserver": meta.url}
        if row == QUEUED:
            params = dict(decode_first.QUEUED)
        decode.core.submit(replace(ask("d1", "A prompt.", GREEDY), wire_id="w1", params=params))
        until(decode.asked, "start")

        decode.core.abort("d1")

        wait_until(partial(holds_nothing, decode), "no page in use")
    assert not lost


def test_a_rank_that_is_frozen_ends_its_engine_and_no_page_stays_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Prefill's, when decode comes for what it has kept."""
    lost: list[str] = []
    with ExitStack() as stack:
        prefill = ranked(stack, "prefill", NIXL, "tcp", Ranks(tp=2), lost)
        decode = alone(stack, "decode", NIXL)
        to_prefill, to_decode = Crossing(NIXL, prefill, decode).requests("A prompt.", GREEDY)
        assert to_prefill is not None
        answer = prefill.engine.answer(to_prefill)
        monkeypatch.setattr(crew, "SILENCE_SECONDS", 3.0)

        os.kill(pids(prefill)[1], signal.SIGSTOP)

        assert decode.engine.answer(to_decode(answer[-1]))[-1].refusal is not None
        ended_for_good(prefill, lost)
        assert "has said nothing for 3 s" in lost[0]
        assert decode.used() == 0
