"""A state that prefill gives along with its pages: guesses come of it, a wrong one is of no use, and no answer hangs on it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pdgate.engine.connector import Pages
from pdgate.engine.model.config import GUESSABLE
from pdgate.engine.model.load import LoadedModel, load
from pdgate.engine.request import Sampling
from pdgate.engine.speculation import TokenState, packed, state_bytes, unpacked
from pdgate.engine.work import Options
from pdgate.protocols.dialects import decode_first
from pdgate.transfer import registry
from tests.support.core_pairs import Side, side
from tests.support.engine_cores import ask, layout

PROMPTS = [f"{n} brown foxes jump over {n} lazy dogs and so on." for n in range(12)]
SAMPLING = Sampling(max_tokens=6, temperature=0, ignore_eos=True)

Change = Callable[[bytes], bytes]


class SpeculatingPair:
    """
    Attributes:
        change: What becomes of a state on its way.
    """

    def __init__(
        self, stack: ExitStack, model: LoadedModel, *, gives: bool = True, queue: str = ""
    ) -> None:
        size = state_bytes(model.config.hidden_size)
        self.change: Change = lambda state: state
        self.queued = bool(queue)
        self._rounds = 0

        def one(role: str, options: Options, **settings: Any) -> Side:
            backend = registry.load("shm")
            stack.callback(backend.close)
            where, named = layout(), {"mover": "threads", "queue": queue, **settings}
            protocol = "decode-first" if queue else "vllm-kvt"
            return side(
                stack, role, protocol, backend, where, options=options, model=model, **named
            )

        self.prefill = one("prefill", Options(), state_bytes=size if gives else None)
        self.decode = one("decode", Options(speculate=4), state_bytes=size, speculates=True)
        kept = self.prefill.connector.kept

        def changed(request_id: str, keep: Any, pages: Pages, *more: Any) -> Any:
            return kept(request_id, keep, replace(pages, state=self.change(pages.state)), *more)

        self.prefill.connector.kept = changed  # type: ignore[method-assign, assignment]

    def answers(self) -> list[list[int]]:
        at: dict[str, Any] = {"remote_host": "127.0.0.1", "remote_port": self.prefill.port}
        if self.queued:
            at = dict(decode_first.QUEUED)
        self._rounds += 1
        found = []
        for number, prompt in enumerate(PROMPTS):
            # No prompt is found again in the prefix cache, so that each is handed over.
            body = {"cache_salt": f"{self._rounds} {number}"}
            request = ask(f"d{number}", prompt, SAMPLING, params=at, body=body)
            found.append(self.decode.engine.tokens(request))
        return found


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return load(GUESSABLE, 2048)


@pytest.fixture(scope="module")
def pair(model: LoadedModel) -> Iterator[SpeculatingPair]:
    with ExitStack() as stack:
        yield SpeculatingPair(stack, model)


def counted(pair: SpeculatingPair) -> tuple[int, int, int]:
    stats = pair.decode.stats
    return stats.states_used, stats.states_accepted, stats.states_refused


def test_guesses_come_of_prefills_state_and_of_a_wrong_one_fewer_are_right(
    pair: SpeculatingPair, model: LoadedModel
) -> None:
    expected = pair.answers()
    used, right, refused = counted(pair)
    random = np.random.default_rng(1)

    def noise(state: bytes) -> bytes:
        known = unpacked(state, model.config.hidden_size)
        assert known is not None
        row = random.standard_normal(len(known.row), np.float32) * np.abs(known.row).max()
        return packed(TokenState(known.tokens, row))

    pair.change = noise

    assert pair.answers() == expected
    both, more, refused_then = counted(pair)
    assert (used, both) == (len(PROMPTS), 2 * len(PROMPTS))
    assert more - right < right
    assert refused == refused_then == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state[:-4],
        lambda state: b"X" + state[1:],
        lambda state: b"PDST" + bytes(4) + state[8:],
    ],
    ids=["short", "foreign", "of another token"],
)
def test_what_is_no_state_of_this_prompt_is_refused_and_the_answer_comes(
    pair: SpeculatingPair, change: Change
) -> None:
    pair.change = lambda state: state
    expected = pair.answers()
    used, _, refused = counted(pair)
    pair.change = change

    assert pair.answers() == expected
    used_then, _, refused_then = counted(pair)
    assert (used_then, refused_then) == (used, refused + len(PROMPTS))


def test_decode_goes_without_where_prefill_gives_none(
    pair: SpeculatingPair, model: LoadedModel
) -> None:
    pair.change = lambda state: state
    expected = pair.answers()
    with ExitStack() as stack:
        alone = SpeculatingPair(stack, model, gives=False)

        assert alone.answers() == expected
        assert counted(alone) == (0, 0, 0)
        assert alone.decode.stats.turns_with_guesses > 0


def test_a_state_comes_with_a_prompt_that_went_over_the_queue(
    pair: SpeculatingPair, model: LoadedModel
) -> None:
    pair.change = lambda state: state
    expected = pair.answers()
    with ExitStack() as stack:
        queued = SpeculatingPair(stack, model, queue="memory://of-the-states")

        assert queued.answers() == expected
        used, right, refused = counted(queued)
        assert (used, refused) == (len(PROMPTS), 0)
        assert right > 0
