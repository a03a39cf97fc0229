"""What safety costs: every feature is really off, and the page says what was measured."""

import pytest

# It is not installed, and so is imported where a test needs it: the wheel's tests have none.
pytestmark = pytest.mark.source


def test_every_variant_is_a_gateway_that_can_be_configured() -> None:
    from benchmarks.guard.gateway import SETTINGS
    from benchmarks.safety.features import ALL, FEATURES, variant

    assert variant(ALL).settings == SETTINGS
    for feature in FEATURES:
        without = variant(feature.name)
        assert feature.settings or without.parts or feature.protocol, feature.name
        assert (without.settings != SETTINGS) == bool(feature.settings), feature.name


def test_calls_are_served_without_any_safety_and_for_less() -> None:
    """The guard's client compares each answer with what the engine sent."""
    assert _least_bytecodes("none") < 0.85 * _least_bytecodes("all")


def _least_bytecodes(name: str) -> int:
    """Of several times: on a busy machine timers come in between."""
    return min(_bytecodes(name) for _ in range(3))


def _bytecodes(name: str) -> int:
    """Of calls of all kinds."""
    from benchmarks.guard.runs import new_loop, serve
    from benchmarks.guard.traced import Trace
    from benchmarks.safety.runs import SHOWN, contender

    trace = Trace()

    async def all_calls() -> None:
        async with contender(name, loop) as client:
            for scenario in SHOWN:
                await serve(client, scenario, calls=1)
                with trace.on():
                    await serve(client, scenario, calls=1)

    loop = new_loop()
    loop.run_until_complete(all_calls())
    return sum(trace.bytecodes.values())


def test_the_gateway_is_whole_again_behind_a_variant() -> None:
    from benchmarks.safety.features import NONE, variant

    chosen = variant(NONE)
    before = {place: getattr(*place) for place in chosen.parts}

    with chosen.in_place():
        assert {place: getattr(*place) for place in chosen.parts} == chosen.parts

    assert {place: getattr(*place) for place in chosen.parts} == before


def found(saved: float) -> dict[str, dict[str, float]]:
    """What every contender takes, those but `all` and the wire taking less."""
    from benchmarks.safety.features import ALL
    from benchmarks.safety.runs import CONTENDERS, WIRE

    by = dict.fromkeys(CONTENDERS, saved) | {ALL: 0.0, WIRE: 90.0}
    return {
        name: {"whole_200": 100 - less, "stream_8": 200 - less, "stream_72": 328 - 2 * less}
        for name, less in by.items()
    }


def test_what_the_wire_takes_is_nobodys_cost() -> None:
    from benchmarks.safety.costs import costs

    made = costs(found(saved=16), [found(saved=8), found(saved=16), found(saved=12)])["keys"]

    assert (made.call.instructions, made.call.saved, made.call.saved_us) == (74, 16, 16)
    assert made.event.saved == made.event.saved_us == 0.25


def test_the_report_says_what_all_features_come_to() -> None:
    from benchmarks.safety.costs import costs
    from benchmarks.safety.report import safety

    made = safety(costs(found(saved=5), [found(saved=5)]), "Today.")

    assert "| `keys` | an API key" in made
    assert "All features together: 5 us of a call's 90" in made
    assert made.endswith("Today.")


def test_the_page_has_a_row_for_every_feature() -> None:
    from benchmarks.page import PAGE, between
    from benchmarks.safety.features import NAMES

    table = between(PAGE.read_text(encoding="utf-8"), "safety")

    missing = [name for name in NAMES if f"| `{name}` |" not in table]
    assert not missing


def test_a_table_is_written_between_its_marks_and_nowhere_else() -> None:
    from benchmarks.page import between, written

    page = "a\n<!-- made: x -->\nold\n<!-- end -->\nb <!-- end -->\n"

    new = written(page, "x", "| new |")

    assert new == "a\n<!-- made: x -->\n\n| new |\n\n<!-- end -->\nb <!-- end -->\n"
    assert between(new, "x") == "| new |"
    with pytest.raises(LookupError):
        written(page, "y", "")
