"""One vLLM alone and one pair at a time, for all tests that use them; run.sh says where from."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.end_to_end.vllm import engines
from tests.end_to_end.vllm.engines import (
    MOONCAKE,
    NIXL,
    PDGATE_MOONCAKE,
    PDGATE_PULL,
    PDGATE_PUSH,
    PDGATE_SHM,
    PDGATE_TCP,
    Engine,
    Fleet,
    Pair,
    Transfer,
)
from tests.end_to_end.vllm.gateway import MODES, Gateway, gateway_over
from tests.end_to_end.vllm.isolation import isolated
from tests.support.processes import Child

# The tests of this folder need run.sh's environment and minutes; `make e2e-vllm` is their command.
if "PDGATE_VLLM_VENV" not in os.environ:
    collect_ignore_glob = ["test_*.py"]


TAIL_LINES = 25

# What vLLM says of its routes, of every probe, and of what its libraries leave behind at exit.
NOISE = re.compile(r"Route: |\"GET /|leaked |nanobind|resource_tracker")


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """Where run.sh says."""
    venv, model, logs = (Path(os.environ[f"PDGATE_VLLM_{it}"]) for it in ("VENV", "MODEL", "LOGS"))
    # Each of the processes that run tests has engines of its own.
    logs /= os.environ.get("PYTEST_XDIST_WORKER", "")
    logs.mkdir(exist_ok=True)
    with engines.fleet_of(venv, model, logs) as fleet:
        yield fleet


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After a failure, the end of what each process said; all of it stays where run.sh says."""
    if not terminalreporter.stats.keys() & {"failed", "error"}:
        return
    folder = Path(os.environ["PDGATE_VLLM_LOGS"])
    for log in sorted(folder.rglob("*.log")):
        terminalreporter.section(str(log.relative_to(folder)))
        lines = log.read_text(errors="replace").splitlines()
        said = [line for line in lines if not NOISE.search(line)]
        terminalreporter.write_line("\n".join(said[-TAIL_LINES:]))


@pytest.fixture(scope="session")
def starting_alone(fleet: Fleet) -> Iterator[tuple[Child, int]]:
    """Not waited for, so that a pair can start beside it."""
    with ExitStack() as stack:
        yield engines.start_single(fleet, stack)


@pytest.fixture(scope="session")
def alone(starting_alone: tuple[Child, int]) -> Engine:
    """The undisaggregated engine that every answer is compared with."""
    return engines.ready(*starting_alone)


@pytest.fixture(scope="session", params=[NIXL, MOONCAKE, PDGATE_TCP], ids=lambda it: it.name)
def pair(
    request: pytest.FixtureRequest, fleet: Fleet, starting_alone: tuple[Child, int]
) -> Iterator[Pair]:
    transfer: Transfer = request.param
    isolated(transfer)
    with ExitStack() as stack:
        yield Pair(fleet, transfer, stack)


@pytest.fixture(
    scope="session",
    params=[PDGATE_SHM, PDGATE_MOONCAKE, PDGATE_PULL, PDGATE_PUSH],
    ids=lambda it: it.name,
)
def ours(
    request: pytest.FixtureRequest, fleet: Fleet, starting_alone: tuple[Child, int]
) -> Iterator[Pair]:
    """PdgateConnector in what it can besides `pair`'s way, which goes through most tests."""
    transfer: Transfer = request.param
    isolated(transfer)
    with ExitStack() as stack:
        yield Pair(fleet, transfer, stack)


@pytest.fixture(scope="session")
def gateways(fleet: Fleet, pair: Pair) -> Iterator[Mapping[str, Gateway]]:
    """One over the pair for each scheduling mode, side by side."""
    with ExitStack() as stack:
        yield {mode: stack.enter_context(gateway_over(pair, mode, fleet.logs)) for mode in MODES}


# Not of the session: pytest groups tests by such parameters, and a pair takes long to start.
@pytest.fixture(params=MODES)
def gateway(request: pytest.FixtureRequest, gateways: Mapping[str, Gateway]) -> Gateway:
    """A gateway over the pair, in each scheduling mode."""
    return gateways[request.param]
