"""An answer is the same with and without guesses, which only make it come in fewer steps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pytest

from pdgate.engine.cache.memory import KvMemory
from pdgate.engine.constrained import schema
from pdgate.engine.constrained.grammar import Grammars
from pdgate.engine.core import EngineCore
from pdgate.engine.model.config import GUESSABLE
from pdgate.engine.model.load import LoadedModel, load
from pdgate.engine.request import Output, Sampling
from pdgate.engine.scheduler import StepLimits
from pdgate.engine.speculation import TokenState, packed, state_bytes, unpacked
from pdgate.engine.work import Options
from tests.support.engine_cores import Engine, ask, layout, tokens_of

PROMPT = "The quick brown fox jumps over the lazy dog, and then over another one, and so on."


@lru_cache
def guessable() -> LoadedModel:
    return load(GUESSABLE, 2048)


@contextmanager
def running(speculate: int, blocks: int = 128, most: int = 512) -> Iterator[Engine]:
    where = layout(blocks, 16)
    made = Engine(memoryview(bytearray(where.total_bytes)))
    options = Options(StepLimits(max_seqs=8, max_tokens=most), speculate=speculate)
    memory = KvMemory(where, [made.memory])
    made.core = EngineCore(guessable(), where, memory, made.deliver, options)
    made.core.start()
    try:
        yield made
    finally:
        made.core.stop()


@pytest.fixture(scope="module")
def plain() -> Iterator[Engine]:
    with running(0) as made:
        yield made


@pytest.fixture(scope="module")
def guessing() -> Iterator[Engine]:
    with running(4) as made:
        yield made


def json_answer() -> Sampling:
    found = schema.expression({"type": "object", "properties": {"a": {"type": "integer"}}})
    model = guessable()
    grammar = Grammars().get("a", model.tokenizer, model.config.vocab_size, lambda: found)
    return Sampling(max_tokens=40, temperature=0, grammar=grammar)


def said(outputs: Sequence[Output]) -> tuple[list[int], str, object, object]:
    last = outputs[-1]
    return tokens_of(outputs), "".join(one.text for one in outputs), last.finish, last.stopped_by


@pytest.mark.parametrize(
    "sampling",
    [
        pytest.param(Sampling(max_tokens=40, temperature=0, ignore_eos=True), id="greedy"),
        pytest.param(Sampling(max_tokens=40, temperature=0.8, seed=7), id="seeded"),
        pytest.param(Sampling(max_tokens=40, temperature=0.7, seed=3, top_p=0.8), id="top p"),
        pytest.param(
            Sampling(max_tokens=200, temperature=1.0, seed=5, min_tokens=9), id="to its end"
        ),
        pytest.param(Sampling(max_tokens=40, temperature=0, stop=("ct",)), id="a stop string"),
        pytest.param(
            Sampling(max_tokens=40, temperature=0, stop_token_ids=frozenset({ord("t")})),
            id="a stop token",
        ),
        pytest.param(Sampling(max_tokens=1, temperature=0), id="one token"),
        pytest.param(Sampling(max_tokens=2, temperature=0), id="two tokens"),
    ],
)
def test_the_answer_is_the_same(sampling: Sampling, plain: Engine, guessing: Engine) -> None:
    expected = said(plain.answer(ask("a", PROMPT, sampling)))

    assert said(guessing.answer(ask("a", PROMPT, sampling))) == expected


def test_an_answer_that_has_to_be_json_is_the_same(plain: Engine, guessing: Engine) -> None:
    expected = said(plain.answer(ask("a", PROMPT, json_answer())))

    assert said(guessing.answer(ask("a", PROMPT, json_answer()))) == expected


def test_log_probabilities_are_those_of_the_tokens_that_came(
    plain: Engine, guessing: Engine
) -> None:
    sampling = Sampling(max_tokens=30, temperature=0, ignore_eos=True, logprobs=2)
    expected, found = (
        [one for output in made.answer(ask("a", PROMPT, sampling)) for one in output.logprobs]
        for made in (plain, guessing)
    )

    assert [one.token for one in found] == [one.token for one in expected]
    assert np.allclose([one.logprob for one in found], [one.logprob for one in expected], atol=1e-3)


def test_fewer_steps_are_taken_and_what_was_guessed_is_counted() -> None:
    sampling = Sampling(max_tokens=60, temperature=0, ignore_eos=True)
    with running(3) as guessing:
        guessing.answer(ask("a", PROMPT, sampling))
        stats = guessing.core.stats

    assert stats.generated == 60
    assert stats.generated == stats.turns + sum(stats.accepted)
    assert stats.turns < 55
    assert sum(stats.accepted) < stats.guessed <= 3 * stats.turns_with_guesses
    assert stats.accepted == sorted(stats.accepted, reverse=True)


def test_what_was_guessed_wrongly_is_not_found_in_the_prefix_cache(
    plain: Engine, guessing: Engine
) -> None:
    """A second request that begins with the first one's answer goes on as it would without guesses."""
    sampling = Sampling(max_tokens=40, temperature=0, ignore_eos=True)
    tokens = plain.tokens(ask("a", PROMPT, sampling))
    assert guessing.tokens(ask("a", PROMPT, sampling)) == tokens
    # Its bytes are its tokens, so that the prompt goes on as the first one's pages do.
    longer = ask("b", PROMPT + bytes(tokens).decode(), sampling)
    expected = plain.tokens(longer)
    before = guessing.core.stats.prompts_from_cache

    assert guessing.tokens(longer) == expected
    assert guessing.core.stats.prompts_from_cache - before > len(PROMPT) + 16


def test_answers_are_the_same_where_pages_and_steps_are_short(plain: Engine) -> None:
    """Requests lose their pages, and steps have little room: no guess takes what another one needs."""
    names = [f"r{n}" for n in range(4)]
    sampling = Sampling(max_tokens=40, temperature=0, ignore_eos=True)
    expected = {name: plain.tokens(ask(name, name + PROMPT, sampling)) for name in names}
    with running(4, blocks=20, most=40) as guessing:
        for name in names:
            guessing.core.submit(ask(name, name + PROMPT, sampling))
        found = guessing.answers(*names)

        assert {name: tokens_of(outputs) for name, outputs in found.items()} == expected
        assert guessing.core.gauges.preemptions > 0
        assert sum(guessing.core.stats.accepted) > 0
        assert guessing.core.gauges.blocks_used == 0


def test_a_state_is_whole_or_none() -> None:
    row = np.arange(8, dtype=np.float32)
    data = packed(TokenState(5, row))
    nan = packed(TokenState(5, np.full(8, np.nan, np.float32)))

    assert len(data) == state_bytes(8)
    found = unpacked(data, 8)
    assert found is not None
    assert (found.tokens, found.from_peer, list(found.row)) == (5, True, list(row))
    for broken in (b"", data[:-1], data + b"x", b"XXXX" + data[4:], nan):
        assert unpacked(broken, 8) is None
    assert unpacked(data, 9) is None
