"""What is asked of every gateway, and which figures come of it.

A scenario is one load or two; a figure is made of their outcomes. Where there are two, they
differ in the length of the answers only, so that (long - short) / events leaves out what the
call itself costs. "Sparse" streams have each their own moments, as from many engines, and an
event is a wake-up; "in step" all have the same, as from one engine's batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.gateway.outcome import Outcome

SPARSE: Final = {"pace_us": 5_000}
IN_STEP: Final = {"pace_us": 20_000, "in_step": 1}
AT_ONCE: Final[Mapping[str, int]] = {}
CHAT: Final = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Load:
    """
    Attributes:
        words: Arguments of the load generator, without what depends on the target.
        engine: Settings of the mock engines.
    """

    words: str
    engine: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Figure:
    """
    Attributes:
        of: Makes it of the outcomes of the scenario's loads, in their order. Less is better.
    """

    title: str
    unit: str
    of: Callable[[Sequence[Outcome]], float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    Attributes:
        fresh: For each trial the gateway is started anew: its memory would else be that of the
            scenarios before.
    """

    name: str
    loads: tuple[Load, ...]
    figures: tuple[Figure, ...]
    fresh: bool = False


def _cpu_of_call(outcomes: Sequence[Outcome]) -> float:
    return outcomes[0].cpu_us / outcomes[0].calls


def _time_for_call(outcomes: Sequence[Outcome]) -> float:
    """The inverse of how many are served in a second."""
    return outcomes[0].seconds / outcomes[0].calls * 1e6


def _cpu_of_event(outcomes: Sequence[Outcome]) -> float:
    short, long = outcomes
    more_cpu = long.cpu_us / long.calls - short.cpu_us / short.calls
    return more_cpu / (long.tokens / long.calls - short.tokens / short.calls)


def _peak_mb(outcomes: Sequence[Outcome]) -> float:
    return outcomes[-1].peak_kb / 1024


def _whole_calls(name: str, size: str, body_bytes: int, calls: int) -> Scenario:
    words = (
        f"--clients 4 --body-bytes {body_bytes} --calls {calls} --warm {calls // 20} --seconds 2"
    )
    figure = Figure(f"CPU of a call of {size}", "µs", _cpu_of_call)
    return Scenario(name, (Load(words, AT_ONCE),), (figure,))


def _latency(name: str, clients: int, words: str) -> Scenario:
    who = "alone" if clients == 1 else f"of {clients} clients"
    return Scenario(
        name,
        (Load(f"--clients {clients} --warm 50 --seconds 2 {words}", AT_ONCE),),
        (
            Figure(f"a call {who}, p50", "µs", lambda seen: seen[0].whole_us.p50),
            Figure(f"a call {who}, p99", "µs", lambda seen: seen[0].whole_us.p99),
        ),
    )


SCENARIOS: Final[Mapping[str, Scenario]] = {
    scenario.name: scenario
    for scenario in (
        _whole_calls("small", "200 B", 200, 1500),
        _whole_calls("medium", "8 KB", 8 * 1024, 1500),
        _whole_calls("large", "128 KB", 128 * 1024, 800),
        _latency("one", 1, "--calls 600"),
        _latency("eight", 8, "--calls 640 --think-us 10000"),
        Scenario(
            "busy",
            (Load("--clients 32 --body-bytes 200 --calls 6000 --warm 600 --seconds 5", AT_ONCE),),
            (
                Figure("time for a call of 200 B, 32 at once", "µs", _time_for_call),
                Figure("CPU of it", "µs", _cpu_of_call),
            ),
        ),
        Scenario(
            "sparse",
            (
                Load("--stream --clients 16 --tokens 16 --calls 160 --warm 32 --seconds 5", SPARSE),
                Load("--stream --clients 16 --tokens 128 --calls 48 --warm 16 --seconds 8", SPARSE),
            ),
            (
                Figure("CPU of an event, sparse", "µs", _cpu_of_event),
                Figure("an event's way, sparse, p50", "µs", lambda seen: seen[1].transit_us.p50),
            ),
        ),
        Scenario(
            "in-step",
            (
                Load("--stream --clients 64 --tokens 8 --calls 256 --warm 64 --seconds 8", IN_STEP),
                Load(
                    "--stream --clients 64 --tokens 40 --calls 128 --warm 64 --seconds 8", IN_STEP
                ),
            ),
            (
                Figure("CPU of an event, in step", "µs", _cpu_of_event),
                Figure("an event's way, in step, p50", "µs", lambda seen: seen[1].transit_us.p50),
            ),
        ),
        Scenario(
            "open",
            (
                Load(
                    "--stream --clients 1000 --tokens 16 --calls 1000 --warm 0 --timeout 60",
                    {"pace_us": 250_000},
                ),
            ),
            (
                Figure("memory with 1,000 open streams", "MB", _peak_mb),
                Figure("first event of 1,000 at once, p50", "µs", lambda s: s[0].first_us.p50),
            ),
            fresh=True,
        ),
        Scenario(
            "idle",
            (
                Load(
                    "--clients 4 --calls 200 --warm 20 --think-us 10000 --idle 10000 --seconds 45",
                    AT_ONCE,
                ),
            ),
            (
                Figure("memory with 10,000 idle clients", "MB", _peak_mb),
                Figure("CPU of a call beside them", "µs", _cpu_of_call),
            ),
            fresh=True,
        ),
        Scenario(
            "slow",
            (
                Load(
                    "--stream --clients 8 --tokens 4000 --calls 8 --warm 0 "
                    "--read-bytes 65536 --read-every-us 5000",
                    {"event_bytes": 4096},
                ),
            ),
            (Figure("memory with 8 slow readers of 16 MB", "MB", _peak_mb),),
            fresh=True,
        ),
        Scenario(
            "image",
            (
                Load(
                    f"--path {CHAT} --clients 2 --body-bytes 4194304 --image-bytes 4190000 "
                    "--calls 30 --warm 4 --seconds 5",
                    AT_ONCE,
                ),
            ),
            (
                Figure("CPU of a call of 4 MB", "µs", _cpu_of_call),
                Figure("memory with calls of 4 MB", "MB", _peak_mb),
            ),
            fresh=True,
        ),
    )
}
