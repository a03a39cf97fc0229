"""One gateway in one scenario, once."""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import nullcontext

from benchmarks.gateway.fleet import Fleet, Gateway, on
from benchmarks.gateway.outcome import Outcome, Wrong, parse
from benchmarks.gateway.priority import first
from benchmarks.gateway.scenarios import Load, Scenario
from benchmarks.gateway.targets.base import KEY

AT_MOST_SECONDS = 180
"""For one load; the load generator ends long before."""


def trial(fleet: Fleet, gateway: Gateway, scenario: Scenario) -> list[Outcome]:
    """An outcome for each of its loads. Raises Wrong."""
    return [_ask(fleet, gateway, load) for load in scenario.loads]


def _ask(fleet: Fleet, gateway: Gateway, load: Load) -> Outcome:
    for engine in (fleet.prefill, fleet.decode):
        engine.set(load.engine)
        engine.get("/mock/counts")
    words = load.words.split()
    outcome = parse(_run(fleet, gateway, words), _value_of("--idle", words))
    _see_the_way(fleet, gateway, outcome)
    return outcome


def _run(fleet: Fleet, gateway: Gateway, words: Sequence[str]) -> str:
    pids = gateway.pids()
    command = [
        *(str(fleet.programs.load), "--port", str(gateway.port), "--key", KEY),
        *("--pids", ",".join(map(str, pids)), *words),
    ]
    # Who starts a program that shall run first has to be first itself.
    everybody = [*pids, fleet.prefill.pid, fleet.decode.pid, os.getpid()]
    try:
        with first(everybody) if fleet.cores.first else nullcontext():
            return subprocess.run(
                on(fleet.cores.load, command),
                stdout=subprocess.PIPE,
                text=True,
                check=True,
                timeout=AT_MOST_SECONDS,
            ).stdout
    except subprocess.TimeoutExpired:
        raise Wrong(f"not done after {AT_MOST_SECONDS} s") from None


def _see_the_way(fleet: Fleet, gateway: Gateway, outcome: Outcome) -> None:
    """A gateway that leaves prefill out would have it easy. Raises Wrong."""
    prefill, decode = (json.loads(one.get("/mock/counts")) for one in (fleet.prefill, fleet.decode))
    split = min(prefill["prefill"], decode["decode"])
    right = split if gateway.target.hops == 2 else decode["plain"]
    if right != outcome.asked:
        raise Wrong(f"{right} of {outcome.asked} calls went over {gateway.target.hops} engines")


def _value_of(flag: str, words: Sequence[str]) -> int:
    return int(words[words.index(flag) + 1]) if flag in words else 0
