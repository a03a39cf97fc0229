from collections import Counter

import msgspec

from pdgate.protocols.call import Call
from pdgate.scheduling.policies.sticky_session import StickySession, session_of
from tests.support.fleets import fleet, prompt


def of(session: str) -> Call:
    headers = [(b"x-session-id", session.encode())]
    return msgspec.structs.replace(prompt(100), headers=headers)


def test_a_session_stays_at_its_engine() -> None:
    """In every gateway, whatever else it has chosen before."""
    among, one, other = fleet(8), StickySession(), StickySession()
    for n in range(9):
        one.choose(of(f"another {n}"), among)

    assert one.choose(of("s"), among) is other.choose(of("s"), list(reversed(among)))


def test_only_the_sessions_of_an_engine_that_leaves_move() -> None:
    among, sticky = fleet(8), StickySession()
    before = {n: sticky.choose(of(f"s{n}"), among) for n in range(200)}

    after = {n: sticky.choose(of(f"s{n}"), among[1:]) for n in range(200)}

    assert {n for n in before if before[n] is not after[n]} == {
        n for n in before if before[n] is among[0]
    }


def test_sessions_spread_evenly() -> None:
    among, sticky = fleet(8), StickySession()

    chosen = Counter(sticky.choose(of(f"s{n}"), among).instance.id for n in range(4000))

    assert len(chosen) == 8
    assert max(chosen.values()) < 1.2 * 500


def test_a_hot_session_cannot_overload_an_engine() -> None:
    """All calls are of one session and none ends; nobody has much more than a fair share."""
    among, sticky = fleet(4), StickySession()

    for _ in range(100):
        chosen = sticky.choose(of("hot"), among)
        chosen.calls += 1
        chosen.tokens += 100

    calls = [one.calls for one in among]
    assert max(calls) <= 1.25 * 25 + 3
    assert min(calls) < 25, "it still prefers some"


def test_a_session_is_what_the_client_calls_one() -> None:
    named = prompt(100, prompt_cache_key="k", user="u")

    assert session_of(named) == session_of(prompt(900, prompt_cache_key="k"))
    assert session_of(named) != session_of(prompt(100, user="u"))
    assert session_of(prompt(100, safety_identifier="s", user="u")) == session_of(
        prompt(900, safety_identifier="s", user="another")
    )
    assert session_of(prompt(100, user="u")) == session_of(prompt(900, user="u"))
    assert session_of(prompt(100, user={"odd": 1})) is not None


def test_later_turns_of_a_conversation_are_of_its_session() -> None:
    begins = {"role": "system", "content": "You are " + "x" * 600}
    turn = prompt(200, messages=[begins, {"role": "user", "content": "a" * 600}])
    later = prompt(900, messages=[begins, {"role": "user", "content": "a" * 600}, {"role": "user"}])

    assert session_of(turn) == session_of(later)
    assert session_of(prompt(3)) is None


def test_short_calls_without_a_session_go_where_least_is() -> None:
    among = fleet(3)
    among[0].calls = among[2].calls = 1

    assert StickySession().choose(prompt(3), among) is among[1]


def test_engines_that_left_are_forgotten_in_time() -> None:
    sticky, among = StickySession(), fleet(2)
    sticky._seeds = {f"gone {n}": n for n in range(5000)}

    sticky.choose(of("s"), among)

    assert set(sticky._seeds) == {"0", "1"}
