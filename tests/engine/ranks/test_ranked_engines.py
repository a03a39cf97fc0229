"""Engines whose ranks are processes answer as the single engine does, whatever ranks they meet.

The cores are real, and so are the ranks' processes, with their regions, movers and ports; only HTTP is left out, which
tests/end_to_end/reference/test_shards.py has.
"""

import os
import signal
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

import pytest

from pdgate.engine.cache.memory import PagedKv
from pdgate.engine.core import EngineCore
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.engine.layout import Layout
from pdgate.engine.meeting import met
from pdgate.engine.pace import StepPace
from pdgate.engine.ranks import crew
from pdgate.engine.ranks.connector import RanksConnector
from pdgate.engine.ranks.seats import stages
from pdgate.engine.request import Sampling
from pdgate.engine.settings import EngineRole, EngineSettings
from pdgate.forwarders.base import Mode
from pdgate.transfer import registry
from pdgate.transfer.runtime.fleet import Identity
from tests.support.core_pairs import Crossing, Row, Side, Watched, side, until
from tests.support.engine_cores import GREEDY, Engine, ask, engine, layout, tiny, tokens_of
from tests.support.kv_backends import require
from tests.support.waiting import wait_until

ASKED = {
    "The quick brown fox jumps over the lazy dog, and then over another.": replace(
        GREEDY, max_tokens=6
    ),
    "One whose beginning nobody has cached, and whose tokens are drawn with a seed.": Sampling(
        max_tokens=6, temperature=1.0, seed=11, ignore_eos=True
    ),
}
"""Prompts of several blocks, the last of them not full, and how to answer."""


class Ranks(NamedTuple):
    tp: int = 1
    pp: int = 1

    def layout(self) -> Layout:
        where = layout(32, 16, self.tp)
        return replace(where, stages=stages(where.layers, self.pp))

    def __str__(self) -> str:
        return f"tp{self.tp}pp{self.pp}"


def ranked(
    stack: ExitStack, role: EngineRole, row: Row, backend: str, ranks: Ranks, lost: list[str]
) -> Side:
    """A running engine that ends with the stack; with several ranks they are processes."""
    where = ranks.layout()
    made = Engine(memoryview(b""))
    settings = EngineSettings(
        role=role, protocol=row.protocol, transfer=backend, tp=ranks.tp, pp=ranks.pp
    )

    def core(memory: PagedKv) -> EngineCore:
        made.core = Watched(tiny(), where, memory, made.deliver)
        return made.core

    of, connector = met(settings, core, where, "tiny", 1, Identity(), lost.append, stack)
    of.connect(connector)
    of.start()
    stack.callback(of.stop)
    assert isinstance(of, Watched)
    assert isinstance(connector, TwoSided | RanksConnector)
    return Side(made, of, connector, 1)


def alone(stack: ExitStack, role: EngineRole, row: Row, pace: StepPace | None = None) -> Side:
    """A running engine of one process, which keeps pages for readers for a moment only."""
    backend = registry.load("tcp")
    stack.callback(backend.close)
    where = layout(32)
    return side(stack, role, row.protocol, backend, where, pace=pace, lease_seconds=2.0)


def pids(of: Side) -> list[int]:
    assert isinstance(of.connector, RanksConnector)
    return of.connector._crew.pids


class Case(NamedTuple):
    row: Row
    backend: str
    prefill: Ranks
    decode: Ranks

    def __str__(self) -> str:
        return f"{self.row}-{self.backend}-{self.prefill}-{self.decode}"


NIXL = Row("vllm-nixl", Mode.STAGED)
KVT, KVT_STAGED = Row("vllm-kvt", Mode.BATCH), Row("vllm-kvt", Mode.STAGED)
SGLANG, OFFLOAD = Row("sglang", Mode.BATCH), Row("offload-p2p", Mode.BATCH)
MORI_READS = Row("mori-io", Mode.STAGED, "read")
MORI_WRITES = Row("mori-io", Mode.BATCH, "write")
USUAL = [
    Case(NIXL, "tcp", Ranks(tp=2), Ranks()),
    Case(KVT, "shm", Ranks(), Ranks(tp=2)),
    Case(KVT, "tcp", Ranks(tp=2), Ranks(pp=2)),
    Case(KVT_STAGED, "tcp", Ranks(pp=2), Ranks()),
    Case(SGLANG, "tcp", Ranks(), Ranks(tp=2)),
    Case(OFFLOAD, "tcp", Ranks(), Ranks(pp=2)),
    Case(MORI_READS, "tcp", Ranks(tp=2), Ranks()),
    Case(MORI_WRITES, "shm", Ranks(tp=2), Ranks()),
]
"""In each run: processes are dear, and which rank meets which is the messenger's own tests' part."""
EVERY = [
    Case(row, backend, prefill, decode)
    for row in (NIXL, KVT, KVT_STAGED, SGLANG, OFFLOAD, MORI_READS, MORI_WRITES)
    for backend in ("shm", "tcp", "mooncake", "nixl")
    for prefill, decode in (
        (Ranks(tp=2), Ranks()),
        (Ranks(), Ranks(tp=2)),
        (Ranks(tp=2), Ranks(tp=2)),
        (Ranks(pp=2), Ranks()),
        (Ranks(), Ranks(pp=2)),
        (Ranks(pp=2), Ranks(tp=2)),
        (Ranks(tp=2), Ranks(pp=2)),
        (Ranks(tp=2, pp=2), Ranks(tp=2)),
        (Ranks(tp=4), Ranks(tp=2)),
    )
]
CASES = [
    *USUAL,
    *(pytest.param(one, marks=pytest.mark.matrix) for one in EVERY if one not in USUAL),
]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[int]]:
    alone = engine()
    alone.core.start()
    found = {prompt: alone.tokens(ask(prompt, prompt, how)) for prompt, how in ASKED.items()}
    alone.core.stop()
    return found


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_is_the_single_engines(case: Case, expected: dict[str, list[int]]) -> None:
    require(case.backend)
    found = {}
    lost: list[str] = []
    with ExitStack() as stack:
        prefill = ranked(stack, "prefill", case.row, case.backend, case.prefill, lost)
        decode = ranked(stack, "decode", case.row, case.backend, case.decode, lost)
        crossing = Crossing(case.row, prefill, decode)
        for number, (prompt, sampling) in enumerate(ASKED.items()):
            found[prompt] = tokens_of(crossing.answer(prompt, sampling, f"c{number}-1"))
            until(prefill.core.told, "release")

        assert found == expected
        lengths = [len(ask("", prompt).prompt) for prompt in ASKED]
        # But the last token of each, where prefill does not hand the one behind it over.
        computed = 0 if case.row == SGLANG else len(lengths)
        assert decode.stats.prompts_from_peer == sum(lengths) - computed
        assert decode.stats.prompts_computed == computed
        assert prefill.used() == decode.used() == 0
    assert not lost


def ended_for_good(of: Side, lost: list[str]) -> None:
    wait_until(lambda: not of.core.alive, "the engine has ended")
    assert len(lost) == 1
    assert of.core.gauges.blocks_used == 0
    assert of.core.trouble
    for pid in pids(of):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


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
