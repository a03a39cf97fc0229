"""What is guarded, made of what the runs gave.

whole_200, whole_8k, stream    one call, over two engines
event                          one more event of a stream: (stream_72 - stream_8) / 64
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.guard.scenarios import LONG, SHORT

EVENT = "event"
NAMES = ("whole_200", "whole_8k", "stream", EVENT)

Counts = Mapping[str, float]
"""By scenario, per call; or by figure."""


@dataclass(frozen=True, slots=True)
class Function:
    """What one did, per call or event.

    Attributes:
        entered: A coroutine is entered whenever it goes on.
    """

    entered: float
    bytecodes: float


@dataclass(frozen=True, slots=True)
class Figure:
    """Per call or event.

    Attributes:
        gateway, relay: Instructions, without what the bare wire takes; None if not counted.
        operations: Name -> how often the event loop was asked for it.
        functions: Name -> what it did.
    """

    gateway: float | None
    relay: float | None
    operations: Mapping[str, float]
    functions: Mapping[str, Function]

    @property
    def ratio(self) -> float | None:
        """The gateway's cost in relays."""
        return None if self.gateway is None or self.relay is None else self.gateway / self.relay

    @property
    def bytecodes(self) -> float:
        return sum(function.bytecodes for function in self.functions.values())


@dataclass(frozen=True, slots=True)
class Traced:
    """What one call of a scenario did, by name."""

    operations: Counts
    entered: Counts
    bytecodes: Counts


def figures(
    instructions: Mapping[str, Counts] | None, traces: Mapping[str, Traced]
) -> dict[str, Figure]:
    """`instructions`: contender -> scenario -> per call. `traces`: scenario -> the gateway's."""
    net = {name: _net(instructions, name) for name in ("gateway", "relay")}
    operations = _by_figure(traces, lambda trace: trace.operations)
    entered = _by_figure(traces, lambda trace: trace.entered)
    bytecodes = _by_figure(traces, lambda trace: trace.bytecodes)
    return {
        figure: Figure(
            net["gateway"].get(figure),
            net["relay"].get(figure),
            operations[figure],
            {
                name: Function(entered[figure].get(name, 0), found)
                for name, found in bytecodes[figure].items()
            },
        )
        for figure in NAMES
    }


def of_figures(by_scenario: Counts) -> dict[str, float]:
    """Of one thing that was counted in every scenario."""
    short, long = by_scenario[f"stream_{SHORT}"], by_scenario[f"stream_{LONG}"]
    return {
        "whole_200": by_scenario["whole_200"],
        "whole_8k": by_scenario["whole_8k"],
        "stream": short,
        EVENT: (long - short) / (LONG - SHORT),
    }


def _net(instructions: Mapping[str, Counts] | None, contender: str) -> dict[str, float]:
    if instructions is None:
        return {}
    gross, wire = of_figures(instructions[contender]), of_figures(instructions["wire"])
    return {figure: gross[figure] - wire[figure] for figure in NAMES}


def _by_figure(
    traces: Mapping[str, Traced], part: Callable[[Traced], Counts]
) -> dict[str, dict[str, float]]:
    """Figure -> name -> count, without what did not happen at all."""
    found: dict[str, dict[str, float]] = {figure: {} for figure in NAMES}
    for name in sorted({name for trace in traces.values() for name in part(trace)}):
        counts = {scenario: part(trace).get(name, 0) for scenario, trace in traces.items()}
        for figure, count in of_figures(counts).items():
            if count:
                found[figure][name] = count
    return found
