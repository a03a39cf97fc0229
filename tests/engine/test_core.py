"""The core's thread, on the built-in model."""

from dataclasses import replace

import pytest

from pdgate.engine.request import Finish, Sampling
from pdgate.engine.scheduler import StepLimits
from pdgate.engine.work import Options
from tests.support.engine_cores import GREEDY, Engine, ask, engine, tokens_of

PROMPTS = {f"r{number}": f"Prompt number {number}: " + "ab" * number * 3 for number in range(8)}


@pytest.fixture
def alone() -> dict[str, list[int]]:
    """What each prompt gives when nothing else runs and nothing is reused."""
    made = engine(Options(reuse_prefixes=False))
    made.core.start()
    found = {name: made.tokens(ask(name, text)) for name, text in PROMPTS.items()}
    made.core.stop()
    return found


def together(made: Engine) -> dict[str, list[int]]:
    for name, text in PROMPTS.items():
        made.core.submit(ask(name, text))
    outputs = made.answers(*PROMPTS)
    made.core.stop()
    return {name: tokens_of(found) for name, found in outputs.items()}


def test_a_batch_changes_no_answer(alone: dict[str, list[int]]) -> None:
    made = engine()
    made.core.start()

    assert together(made) == alone


def test_chunks_change_no_answer(alone: dict[str, list[int]]) -> None:
    made = engine(Options(StepLimits(max_seqs=8, max_tokens=11)))
    made.core.start()

    assert together(made) == alone


def test_preemption_changes_no_answer(alone: dict[str, list[int]]) -> None:
    made = engine(blocks=12)
    made.core.start()

    assert together(made) == alone
    assert made.core.gauges.preemptions > 0
    assert made.core.gauges.blocks_used == 0


def test_a_known_prefix_changes_no_answer(alone: dict[str, list[int]]) -> None:
    made = engine()
    made.core.start()
    first = made.answer(ask("first", PROMPTS["r7"]))
    again = made.answer(ask("again", PROMPTS["r7"]))
    made.core.stop()

    assert tokens_of(first) == tokens_of(again) == alone["r7"]
    assert first[-1].cached_tokens == 0
    assert again[-1].cached_tokens == 48
    assert made.core.stats.prompts_from_cache == 48


def test_a_next_turn_finds_the_blocks_of_the_answer_before_it() -> None:
    made = engine()
    made.core.start()
    first = ask("first", PROMPTS["r1"], replace(GREEDY, max_tokens=60))
    said = made.tokens(first)
    turn = replace(ask("next", "x"), prompt=(*first.prompt, *said, 65, 66))
    known = made.answer(turn)
    made.core.stop()
    fresh = engine(Options(reuse_prefixes=False))
    fresh.core.start()
    computed = fresh.answer(turn)
    fresh.core.stop()

    # The last token that was said has no KV yet.
    assert known[-1].cached_tokens == (len(first.prompt) + len(said) - 1) // 16 * 16
    assert tokens_of(known) == tokens_of(computed)


def test_an_answer_does_not_end_before_its_least_length() -> None:
    made = engine(blocks=256)
    made.core.start()
    greedy = Sampling(max_tokens=400, temperature=0)
    short = next(
        text
        for text in (f"Question {number}?" for number in range(30))
        if made.answer(ask(text, text, greedy))[-1].finish is Finish.STOP
    )
    ended = made.tokens(ask("short", short, greedy))
    longer = made.tokens(ask("long", short, replace(greedy, min_tokens=len(ended) + 5)))
    made.core.stop()

    assert longer[: len(ended) - 1] == ended[:-1]
    assert len(longer) >= len(ended) + 5
    assert ended[-1] not in longer[: len(ended) + 5]


def test_an_aborted_request_gives_its_pages_back() -> None:
    made = engine()
    made.core.start()
    made.core.submit(ask("long", "x", Sampling(max_tokens=1500, temperature=0, ignore_eos=True)))
    made.next()

    made.core.abort("long")

    assert made.answers("long")["long"][-1].finish is Finish.ABORT
    assert made.core.gauges.blocks_used == 0
    made.core.stop()


def test_a_seed_repeats_an_answer_and_another_changes_it() -> None:
    made = engine()
    made.core.start()
    warm = Sampling(max_tokens=20, temperature=1.5, ignore_eos=True, seed=1)
    answers = [
        made.tokens(ask(f"r{number}", "Tell me", replace(warm, seed=seed)))
        for number, seed in enumerate((1, 1, 2))
    ]
    made.core.stop()

    assert answers[0] == answers[1] != answers[2]


def test_the_logprobs_of_a_prompt_cover_all_but_its_first_token() -> None:
    """Also when its prefix is known, and when it comes in chunks."""
    made = engine(Options(StepLimits(max_seqs=4, max_tokens=7)))
    made.core.start()
    made.answer(ask("before", PROMPTS["r3"]))
    asked = ask("r", PROMPTS["r3"], replace(GREEDY, logprobs=2, prompt_logprobs=2))

    found = made.answer(asked)[0].prompt_logprobs

    made.core.stop()
    assert found is not None
    assert found[0] is None
    assert [entry and entry.token for entry in found[1:]] == list(asked.prompt[1:])


def test_zero_tokens_read_the_prompt_and_say_nothing() -> None:
    made = engine()
    made.core.start()

    outputs = made.answer(ask("r", "Hello", Sampling(max_tokens=0)))

    made.core.stop()
    assert [output.finish for output in outputs] == [Finish.LENGTH]
    assert tokens_of(outputs) == []


def test_stopping_answers_those_who_wait() -> None:
    made = engine()
    made.core.start()
    made.core.submit(ask("long", "x", Sampling(max_tokens=1500, temperature=0, ignore_eos=True)))
    made.next()

    made.core.stop()

    assert made.answers("long")["long"][-1].finish is Finish.ABORT
    made.core.submit(ask("late", "x"))
    assert made.next().refusal is not None
    assert not made.core.alive


def test_a_dead_core_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine()
    monkeypatch.setattr(made.core._work, "step", lambda: 1 / 0)
    made.core.submit(ask("r", "x"))
    made.core.start()

    refusal = made.answers("r")["r"][-1].refusal

    made.core.stop()
    assert refusal is not None
    assert not refusal.blame_client
    assert not made.core.alive


@pytest.mark.parametrize("salt", ["", 7, ["x"]], ids=str)
def test_a_salt_that_is_none_is_refused(salt: object) -> None:
    """Taken for no salt, it would share the prefixes of those who have none."""
    made = engine()
    made.core.start()

    made.core.submit(ask("r", "x", body={"cache_salt": salt}))

    refusal = made.answers("r")["r"][-1].refusal
    made.core.stop()
    assert refusal is not None
    assert refusal.blame_client
    assert "cache_salt" in refusal.message
