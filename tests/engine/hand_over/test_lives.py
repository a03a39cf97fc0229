"""An engine that ends in the middle of a hand-over, and another life of it at the same address.

Whatever the protocol: the other side's request ends with an error that has a name, every page
of that side comes back, and the next request is answered as if nothing had been. What a killed
process leaves behind is tests/transfer/messenger's.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from pdgate.engine.hand_over.kvt import KvtHandOver
from pdgate.engine.pace import StepPace
from pdgate.engine.request import Finish, Output, Request
from pdgate.engine.scheduler import StepLimits
from pdgate.engine.work import Options
from pdgate.forwarders.base import Mode
from pdgate.transfer import registry
from pdgate.transfer.base import Backend
from tests.support.core_pairs import ROWS, Crossing, Row, Side, side, until
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of
from tests.support.ports import free_port

TEXT = "The quick brown fox jumps over the lazy dog, and then over another."
ENDLESS = StepPace(token_seconds=0.05)
"""2000 tokens of an answer take 100 s, however fast the machine is."""

FEW = replace(GREEDY, max_tokens=4)
KVT_BATCH = Row("vllm-kvt", Mode.BATCH)
SERIAL = [row for row in ROWS if row.mode is Mode.STAGED or row.generation == "a"]
AT_ONCE = [row for row in ROWS if row not in SERIAL]
SAYS_GOODBYE = [row for row in AT_ONCE if row.protocol != "neuron"]
"""Neuron has no word for it: prefill's lease ends what decode does not come back for."""
ASKED_BY_ID = [row for row in ROWS if row.protocol not in ("vllm-nixl", "tpu") and row != KVT_BATCH]
"""NIXL's and the TPU's prefill give out ids of their own, and KVT's is not asked by HTTP."""


class Engine:
    """One address, and the lives that follow one another at it. Each has a memory of its own."""

    def __init__(self, stack: ExitStack, role: str, row: Row, seqs: int) -> None:
        self._role, self._row, self._seqs = role, row, seqs
        self._life = stack.enter_context(ExitStack())
        # Not one of those that outgoing connections are given, one of which could take it between
        # two lives.
        self._address: dict[str, Any] = {"kv_port": free_port()}
        self.now = self._start()

    def _start(self) -> Side:
        backend: Backend = registry.load("shm")
        self._life.callback(backend.close)
        options = Options(StepLimits(max_seqs=self._seqs, max_tokens=64))
        started = side(
            self._life,
            self._role,
            self._row.protocol,
            backend,
            layout(),
            options=options,
            pace=ENDLESS if self._role == "prefill" and self._row in AT_ONCE else None,
            mover="threads",
            **self._address,
        )
        self._address = {"api_port": started.api_port, "kv_port": started.port}
        return started

    def end(self) -> None:
        self._life.close()

    def again(self) -> None:
        self.now = self._start()


class Two:
    def __init__(self, stack: ExitStack, row: Row, prefills: int) -> None:
        self._row = row
        self.p, self.d = (
            Engine(stack, role, row, seqs) for role, seqs in (("prefill", prefills), ("decode", 8))
        )

    @property
    def crossing(self) -> Crossing:
        return Crossing(self._row, self.p.now, self.d.now)

    def busy(self) -> None:
        """Prefill computes something endless, so whatever else it is asked waits."""
        endless = ask("endless", "y", replace(GREEDY, max_tokens=2000))
        self.p.now.core.submit(endless)
        self.p.now.engine.next()

    def waits_at_prefill(self, request: Request) -> None:
        """Prefill knows it: who asks for a key, and leaves before, has left nothing to end."""
        self.p.now.core.submit(request)
        with self.p.now.engine.resting():
            pass

    def answers_again(self, expected: list[int]) -> None:
        assert tokens_of(self.crossing.answer(TEXT, FEW, "again-1")) == expected


@pytest.fixture
def two(request: pytest.FixtureRequest) -> Iterator[Two]:
    with ExitStack() as stack:
        yield Two(stack, request.param, prefills=1 if request.param in AT_ONCE else 8)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    alone = engine()
    alone.core.start()
    tokens = alone.tokens(ask("single", TEXT, FEW))
    alone.core.stop()
    return tokens


def failed(answer: list[Output]) -> bool:
    last = answer[-1]
    named = last.refusal is not None and "KV cache could not be loaded" in last.refusal.message
    return not tokens_of(answer) and (named or last.finish is Finish.ABORT)


@pytest.mark.parametrize("again", [False, True], ids=["gone", "another life"])
@pytest.mark.parametrize("two", SERIAL, ids=str, indirect=True)
def test_prefill_that_has_answered_and_ends(
    two: Two, expected: list[int], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    to_prefill, to_decode = two.crossing.requests(TEXT, FEW)
    assert to_prefill is not None
    asked = to_decode(two.p.now.engine.answer(to_prefill)[-1])
    two.p.end()
    if again:
        two.p.again()

    with monkeypatch.context() as impatient:
        # Another life does not know the request, and need not be asked for long.
        impatient.setattr(KvtHandOver, "meet_seconds", 0.2)
        assert failed(two.d.now.engine.answer(asked))

    assert two.d.now.used() == 0
    if again:
        two.answers_again(expected)
        assert two.d.now.used() == 0


@pytest.mark.parametrize("two", AT_ONCE, ids=str, indirect=True)
def test_prefill_that_ends_while_decode_waits_for_it(two: Two, expected: list[int]) -> None:
    two.busy()
    to_prefill, to_decode = two.crossing.requests(TEXT, FEW)
    if to_prefill is not None:
        two.waits_at_prefill(to_prefill)
    two.d.now.core.submit(asked := to_decode(None))
    until(two.d.now.asked, "start")

    two.p.end()

    assert failed(two.d.now.engine.answers(asked.id)[asked.id])
    assert two.d.now.used() == 0
    two.p.again()
    two.answers_again(expected)


@pytest.mark.parametrize("two", SAYS_GOODBYE, ids=str, indirect=True)
def test_decode_that_ends_while_it_waits_for_prefill(two: Two, expected: list[int]) -> None:
    """Prefill is told, and computes for nobody no longer."""
    two.busy()
    to_prefill, to_decode = two.crossing.requests(TEXT, FEW)
    if to_prefill is not None:
        two.waits_at_prefill(to_prefill)
    two.d.now.core.submit(to_decode(None))
    until(two.p.now.asked, "peer")

    two.d.end()

    if to_prefill is not None:
        ended = two.p.now.engine.answers(to_prefill.id)[to_prefill.id]
        assert ended[-1].finish is Finish.ABORT
    two.p.now.core.abort("endless")
    assert two.p.now.used() == 0
    two.d.again()
    two.answers_again(expected)


@pytest.mark.parametrize("two", ASKED_BY_ID, ids=str, indirect=True)
def test_an_id_that_is_taken_fails_the_second_call_only(two: Two, expected: list[int]) -> None:
    to_prefill, to_decode = two.crossing.requests(TEXT, FEW)
    assert to_prefill is not None
    answers = two.p.now.engine.answer(to_prefill)

    second = two.p.now.engine.answer(replace(to_prefill, id="second"))

    assert second[-1].refusal is not None
    assert second[-1].refusal.blame_client
    answer = two.d.now.engine.answer(to_decode(answers[-1]))
    assert tokens_of(answer) == expected
