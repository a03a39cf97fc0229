"""A rank that is killed or frozen, and a call that is cancelled, at each state of a call: no page stays in use at either engine,
and what is said is what the single engine says, as far as it goes.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import pytest

from pdgate.engine.pace import StepPace
from pdgate.engine.ranks import crew
from pdgate.engine.request import Finish, Output
from pdgate.forwarders.base import Mode
from tests.support.core_pairs import Crossing, Row, Side
from tests.support.engine_cores import GREEDY, ask, engine, tokens_of
from tests.support.ranked_engines import Ranks, ended_for_good, holds_nothing, pids, ranked
from tests.support.waiting import wait_until

PROMPT = "A prompt of some blocks, that is handed over from one engine to another one."
SAMPLING = replace(GREEDY, max_tokens=40)
PULLED, PUSHED = Row("vllm-nixl", Mode.STAGED), Row("vllm-kvt", Mode.STAGED)
PACES = {
    "prefill": StepPace(prefill_seconds=1.0),
    "decode": StepPace(token_seconds=0.05),
}
LEASE_SECONDS = 5.0
SILENCE_SECONDS = 3.0
SIDES = ("prefill", "decode")
"""Of which one has two ranks, and the fault."""
STATES = ("while prefill computes", "when prefill has kept it", "while decode says tokens")
QUICK = {
    (PULLED, "decode", "kill", STATES[2]),
    (PUSHED, "prefill", "cancel", STATES[0]),
}
"""The rest of the product is `make matrix`: each case starts processes, and a frozen one is waited for."""


def kill(of: Side, _: pytest.MonkeyPatch) -> None:
    os.kill(pids(of)[1], signal.SIGKILL)


def freeze(of: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew, "SILENCE_SECONDS", SILENCE_SECONDS)
    os.kill(pids(of)[1], signal.SIGSTOP)


def cancel(of: Side, _: pytest.MonkeyPatch) -> None:
    """As when the client leaves; what it kept for a reader is not wanted any more."""
    with of.engine.resting():
        work = of.core._work
        names = [*work._live, *work._retained.leases._leases]
    for name in names:
        of.core.abort(name)


FAULTS: dict[str, Callable[[Side, pytest.MonkeyPatch], None]] = {
    "kill": kill,
    "freeze": freeze,
    "cancel": cancel,
}


def cases() -> Iterator[Any]:
    for case in product((PULLED, PUSHED), SIDES, FAULTS, STATES):
        marks = () if case in QUICK else (pytest.mark.matrix,)
        yield pytest.param(*case, marks=marks, id="-".join(map(str, case)))


@pytest.fixture(scope="module")
def expected() -> list[int]:
    alone = engine()
    alone.core.start()
    found = alone.tokens(ask("alone", PROMPT, SAMPLING))
    alone.core.stop()
    return found


def went_well(outputs: list[Output]) -> bool:
    return outputs[-1].refusal is None and outputs[-1].finish is not Finish.ABORT


@pytest.mark.parametrize(("row", "where", "fault", "state"), list(cases()))
def test_no_page_stays_in_use_and_no_token_is_wrong(
    row: Row,
    where: str,
    fault: str,
    state: str,
    expected: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[str] = []
    with ExitStack() as stack:
        sides = {
            "prefill": ranked(
                stack,
                "prefill",
                row,
                "tcp",
                Ranks(tp=2 if where == "prefill" else 1),
                lost,
                pace=PACES["prefill"],
                lease_seconds=LEASE_SECONDS,
            ),
            "decode": ranked(
                stack,
                "decode",
                row,
                "tcp",
                Ranks(tp=2 if where == "decode" else 1),
                lost,
                pace=PACES["decode"],
            ),
        }
        prefill, decode = sides["prefill"], sides["decode"]
        strike = partial(FAULTS[fault], sides[where], monkeypatch)
        to_prefill, to_decode = Crossing(row, prefill, decode).requests(PROMPT, SAMPLING)
        assert to_prefill is not None

        prefill.core.submit(to_prefill)
        if state == STATES[0]:
            wait_until(lambda: prefill.core.gauges.running, "the prompt is being computed")
            strike()
        first = prefill.engine.answers(to_prefill.id)[to_prefill.id]
        if state == STATES[1]:
            strike()
        said: list[Output] = []
        if went_well(first):
            asked = to_decode(first[-1])
            decode.core.submit(asked)
            if state == STATES[2]:
                said.append(decode.engine.next())
                strike()
            if not (said and said[-1].last):
                said += decode.engine.answers(asked.id)[asked.id]

        tokens = tokens_of(said)
        assert tokens == expected[: len(tokens)]
        if said and went_well(said):
            assert tokens == expected
        if state == STATES[2] and where == "decode":
            assert not went_well(said)
        if fault == "cancel":
            assert not lost
        else:
            ended_for_good(sides[where], lost)
        for one in sides.values():
            wait_until(partial(holds_nothing, one), "no page in use")


def test_a_preempted_call_goes_on_with_the_right_tokens() -> None:
    """Decode of two ranks has too few pages for all that it was handed."""
    prompts = [f"{number}: {PROMPT}" for number in range(3)]
    alone = engine()
    alone.core.start()
    wanted = {prompt: alone.tokens(ask(prompt, prompt, SAMPLING)) for prompt in prompts}
    alone.core.stop()
    lost: list[str] = []
    with ExitStack() as stack:
        prefill = ranked(stack, "prefill", PULLED, "tcp", Ranks(), lost)
        decode = ranked(stack, "decode", PULLED, "tcp", Ranks(tp=2), lost, blocks=19)
        crossing = Crossing(PULLED, prefill, decode)
        asked = {}
        for number, prompt in enumerate(prompts):
            to_prefill, to_decode = crossing.requests(prompt, SAMPLING, f"c{number}-1")
            assert to_prefill is not None
            asked[prompt] = to_decode(prefill.engine.answer(to_prefill)[-1])
        with decode.engine.resting():
            for request in asked.values():
                decode.core.submit(request)
        found = decode.engine.answers(*(request.id for request in asked.values()))

        assert {prompt: tokens_of(found[one.id]) for prompt, one in asked.items()} == wanted
        assert decode.core.gauges.preemptions > 0
        for one in (prefill, decode):
            wait_until(partial(holds_nothing, one), "no page in use")
    assert not lost
