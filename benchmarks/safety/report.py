"""What was measured, in words for a page."""

from collections.abc import Iterator, Mapping

from benchmarks.page import table
from benchmarks.safety.costs import Cost, Costs, by_instructions
from benchmarks.safety.features import ALL, FEATURES, NONE
from benchmarks.safety.runs import RELAY

HEADS = (
    "without", "which is", "instructions of a call", "saved", "saved, us",
    "of an event", "saved", "saved, us",
)  # fmt: skip


def safety(found: Mapping[str, Costs], conditions: str) -> str:
    """The table, and what all of it comes to."""
    together = found[NONE]
    call, event = (by_instructions(found, lambda c: c.call), by_instructions(found, _event))
    return (
        f"{table(HEADS, _rows(found))}\n\n"
        f"All features together: {together.call.saved_us:.0f} us of a call's "
        f"{found[ALL].call.us:.0f}, {together.event.saved_us:.2f} us of an event's "
        f"{found[ALL].event.us:.2f} by the clock; {call:.0f} us and {event:.2f} us by their share "
        f"of the instructions. {conditions}"
    )


def _event(costs: Costs) -> Cost:
    return costs.event


def _rows(found: Mapping[str, Costs]) -> Iterator[tuple[str, ...]]:
    yield _row("nothing: all are on", "", found[ALL])
    for feature in FEATURES:
        yield _row(f"`{feature.name}`", feature.does, found[feature.name])
    yield _row("all of these", "", found[NONE])
    yield _row("bare relay", "no gateway: `benchmarks/guard/relay.py`", found[RELAY])


def _row(name: str, does: str, costs: Costs) -> tuple[str, ...]:
    call, event = costs.call, costs.event
    return (
        name,
        does,
        f"{call.instructions:,.0f}",
        f"{call.saved:,.0f}",
        f"{call.saved_us:.1f}",
        f"{event.instructions:,.0f}",
        f"{event.saved:,.0f}",
        f"{event.saved_us:.2f}",
    )
