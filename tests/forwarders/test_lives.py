"""A prefill engine that comes back under its old engine id is named, and no other."""

import pytest

from pdgate.forwarders.choices import OnPrefillFailure
from pdgate.forwarders.lives import Lives
from pdgate.forwarders.vllm_nixl import VllmNixl
from pdgate.protocols.call import Json, encode, parse_object
from pdgate.protocols.errors import EngineFailed, EngineRefused
from tests.support.answers import prefilled
from tests.support.scripted import D0, P0, Crossing, Scripted, Turns, chat

NIXL = VllmNixl()


def answer(engine_id: str | None) -> Json:
    return parse_object(encode({"kv_transfer_params": {"remote_engine_id": engine_id}}))


def comes_back(lives: Lives, before: str | None, after: str | None) -> None:
    lives.answered("p0", NIXL, answer(before))
    lives.refused("p0")
    lives.answered("p0", NIXL, answer(after))


def test_one_that_kept_its_id_and_fails_since_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lives = Lives()
    comes_back(lives, "same", "same")

    for _ in range(5):
        lives.decode_failed("p0")

    assert lives.pinned == {"p0"}
    assert [record.message.split()[3] for record in caplog.records] == ["p0"]


@pytest.mark.parametrize(("before", "after"), [("one", "other"), (None, None), (None, "one")])
def test_one_with_a_new_id_is_not(before: str | None, after: str | None) -> None:
    lives = Lives()
    comes_back(lives, before, after)

    for _ in range(5):
        lives.decode_failed("p0")

    assert lives.pinned == set()


def test_one_that_was_never_away_is_not() -> None:
    lives = Lives()
    lives.answered("p0", NIXL, answer("same"))

    for _ in range(5):
        lives.decode_failed("p0")

    assert lives.pinned == set()


def test_one_failure_may_have_any_cause() -> None:
    lives = Lives()
    comes_back(lives, "same", "same")

    lives.decode_failed("p0")

    assert lives.pinned == set()


def test_another_restart_clears_the_name() -> None:
    lives = Lives()
    comes_back(lives, "same", "same")
    for _ in range(2):
        lives.decode_failed("p0")

    lives.refused("p0")

    assert lives.pinned == set()


@pytest.mark.parametrize("reply", [{}, {"kv_transfer_params": None}, {"kv_transfer_params": 7}])
def test_an_answer_without_an_id_says_nothing(reply: dict[str, object]) -> None:
    assert NIXL.engine_id(parse_object(encode(reply))) is None


async def test_calls_find_it_out() -> None:
    """Decode has met the old process, so each transfer fails: an ordinary 500."""
    engines = Scripted(
        p0=Turns(prefilled(), EngineRefused("restarts"), prefilled(), prefilled()),
        d0=Turns([b"a"], EngineFailed("500"), EngineFailed("500")),
    )
    crossing = Crossing(engines, P0, D0, on_prefill_failure=OnPrefillFailure.RETRY)
    await crossing.ask(chat())
    await crossing.ask(chat())
    crossing.endpoints.mark_up("p0", ["m"])

    await crossing.ask(chat())

    assert crossing.lives.pinned == {"p0"}
