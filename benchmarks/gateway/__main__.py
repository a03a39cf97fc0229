"""python -m benchmarks.gateway [--scenarios A,B] [--targets A,B] [--rounds N] [--pin] ...

Installs the gateways that are asked for, each into an environment of its own in --cache; then
goes on as the same command where there is nothing but loopback (tools/isolated.sh), and measures.
Prints the table; writes it, the JSON and the picture into --out.
"""

import argparse
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.gateway import chart, priority, report
from benchmarks.gateway.figures import rows
from benchmarks.gateway.fleet import Cores, fleet
from benchmarks.gateway.programs import NoCompiler, Programs, compiled
from benchmarks.gateway.rounds import Plan, measure
from benchmarks.gateway.scenarios import SCENARIOS
from benchmarks.gateway.targets import TARGETS
from benchmarks.gateway.targets.base import NotInstalled, Target, folder_of

ROOT = Path(__file__).parents[2]
ISOLATED = "PDGATE_BENCHMARK_ISOLATED"
"""Set when we have been there; the second time there is no network to install anything with."""

WHY_NOT = "why-not"
"""A file in the folder of a gateway that could not be installed."""


def main() -> None:
    asked = _arguments()
    # As an error, so that what we started ends with us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))
    try:
        programs = compiled(asked.cache)
    except NoCompiler as missing:
        sys.exit(str(missing))
    targets = [TARGETS[name] for name in asked.targets]
    if ISOLATED not in os.environ:
        for target in targets:
            _install(target, asked.cache)
        os.environ[ISOLATED] = "1"
        os.chdir(ROOT)
        again = [sys.executable, "-m", "benchmarks.gateway", *sys.argv[1:]]
        os.execvp("bash", ["bash", "tools/isolated.sh", *again])
    run = _measure(asked, programs, targets)
    asked.out.mkdir(parents=True, exist_ok=True)
    (asked.out / "gateway.json").write_text(report.as_json(run), encoding="utf-8")
    (asked.out / "gateway.md").write_text(report.markdown(run) + "\n", encoding="utf-8")
    if run.rows:
        chart.draw(run.rows, asked.out / "gateway.png")
    print(report.markdown(run))


def _measure(
    asked: argparse.Namespace, programs: Programs, targets: Sequence[Target]
) -> report.Run:
    _open_many_files()
    scenarios = [SCENARIOS[name] for name in asked.scenarios]
    missing = {target.name: why for target in targets if (why := _why_not(target, asked.cache))}
    here = [target for target in targets if target.name not in missing]
    cores = Cores.two(asked.first) if asked.pin else Cores(first=asked.first)
    before = os.getloadavg()[0]
    with fleet(programs, asked.cache, cores) as running:
        measured = measure(running, Plan(here, scenarios, asked.rounds))
    load = (before, os.getloadavg()[0])
    return report.Run(
        measured.results,
        rows(measured.results, scenarios),
        missing | dict(measured.down),
        asked.rounds,
        cores,
        load,
    )


def _install(target: Target, cache: Path) -> None:
    folder = folder_of(target, cache)
    print(f"installing {target.name} into {folder}", file=sys.stderr, flush=True)
    try:
        target.install(folder)
        (folder / WHY_NOT).unlink(missing_ok=True)
    except NotInstalled as why:
        print(f"{target.name} is left out: {why}", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / WHY_NOT).write_text(f"not installed: {why}", encoding="utf-8")


def _why_not(target: Target, cache: Path) -> str | None:
    file = folder_of(target, cache) / WHY_NOT
    return file.read_text(encoding="utf-8") if file.exists() else None


def _open_many_files() -> None:
    """10,000 clients are as many sockets; the gateways inherit what we may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway")
    parser.add_argument("--scenarios", type=_some_of(SCENARIOS), default=list(SCENARIOS))
    parser.add_argument("--targets", type=_some_of(TARGETS), default=list(TARGETS))
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--pin", action="store_true", help="gateways on a core of their own")
    parser.add_argument(
        "--first", action="store_true", help="before all other programs; takes root"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench")
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    parser.add_argument("--cache", type=Path, default=Path(home) / "pdgate-benchmarks")
    asked = parser.parse_args()
    if asked.pin and len(os.sched_getaffinity(0)) < 2:
        parser.error("--pin takes two cores")
    if asked.first and not priority.allowed():
        parser.error("--first takes root, or CAP_SYS_NICE")
    # We go on elsewhere.
    asked.out, asked.cache = asked.out.resolve(), asked.cache.resolve()
    return asked


def _some_of(known: Mapping[str, object]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(known)}")
        return chosen

    return names


if __name__ == "__main__":
    main()
