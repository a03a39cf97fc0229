"""What the built-in model promises to demos and tests."""

import string

from pdgate.engine.model import builtin
from pdgate.engine.model.load import load
from pdgate.engine.request import Finish, Sampling
from tests.support.cpu import cpu_seconds
from tests.support.engine_cores import ask, engine

PROMPT = "Say something that is long enough to fill a few pages of KV cache, please."


def test_it_loads_in_half_a_second() -> None:
    """Of CPU, as tests share their machine."""
    assert cpu_seconds(lambda: load(None, 32768)) < 0.5


def test_answers_are_printable_whatever_the_temperature() -> None:
    made = engine()
    made.core.start()
    hot = Sampling(max_tokens=300, temperature=5.0, ignore_eos=True)
    text = "".join(output.text for output in made.answer(ask("r", PROMPT, hot)))
    made.core.stop()

    assert set(text) <= set(string.printable[:95])
    assert len(text) > 250


def test_every_part_of_the_prompt_counts() -> None:
    """Else a hand-over could lose a page and nobody would see it."""
    made = engine()
    made.core.start()
    right = made.tokens(ask("right", PROMPT))
    for at in range(0, len(PROMPT), 9):
        other = PROMPT[:at] + "#" + PROMPT[at + 1 :]
        assert made.tokens(ask(f"r{at}", other)) != right
    made.core.stop()


def test_answers_end_by_themselves_now_and_then() -> None:
    made = engine(blocks=512)
    made.core.start()
    greedy = Sampling(max_tokens=400, temperature=0)
    # One after the other, and none after the first that did.
    ends = (
        made.answer(ask(f"r{number}", f"Question {number}?", greedy))[-1].finish
        for number in range(6)
    )
    found = Finish.STOP in ends
    made.core.stop()

    assert found


def test_bytes_come_back_as_they_went_in() -> None:
    tokenizer = builtin.tokenizer()
    text = "a\x00\n\xe9 \u20ac \U0001f600"

    ids = tokenizer.encode(text)

    assert ids == [builtin.BOS, *text.encode()]
    assert tokenizer.decode(ids) == text
