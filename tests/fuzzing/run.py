"""Coverage-guided fuzzing of some targets, or of all, in turns.

    make fuzz MINUTES=60
    .venv/bin/python -m tests.fuzzing.run events bodies --minutes 5 [--corpus FOLDER]

What it finds is a file `crash-*`, written where it is run; put its bytes into the target's SEEDS.
Needs the dependency group "fuzz" (atheris, which carries libFuzzer).
"""

import argparse
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

TARGETS = ("upstream_answers", "client_bytes", "bodies", "events")
INSTRUMENTED = ("pdgate", "httptools", "uvicorn")
LONGEST_BYTES = 4096
DEFAULT_MINUTES = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing.run")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"{', '.join(TARGETS)}; or all"
    )
    parser.add_argument("--minutes", type=float, default=DEFAULT_MINUTES, help="in all")
    parser.add_argument("--corpus", type=Path, help="kept, and begun with the next time")
    asked = parser.parse_args()
    targets = asked.targets or TARGETS
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"there is no {', '.join(unknown)}")
    if len(targets) == 1:
        fuzz(targets[0], max(1, int(asked.minutes * 60)), asked.corpus)
    failed = [
        target
        for target in targets
        if _in_a_process(target, asked.minutes / len(targets), asked.corpus)
    ]
    print(f"findings in: {', '.join(failed)}" if failed else "nothing was found")
    return 1 if failed else 0


def _in_a_process(target: str, minutes: float, corpus: Path | None) -> int:
    """libFuzzer ends its process."""
    command = [sys.executable, "-m", "tests.fuzzing.run", target, "--minutes", str(minutes)]
    kept = ["--corpus", str(corpus)] if corpus else []
    return subprocess.run([*command, *kept], check=False).returncode


def fuzz(name: str, seconds: int, corpus: Path | None) -> None:
    """Does not return."""
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        target = import_module(f"tests.fuzzing.{name}")
    with TemporaryDirectory() as scratch:
        folder = (corpus or Path(scratch)) / name
        folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(target.SEEDS):
            (folder / f"seed-{number}").write_bytes(seed)
        limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST_BYTES}", "-timeout=10"]
        atheris.Setup([sys.argv[0], str(folder), *limits, "-print_final_stats=1"], target.check)
        atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
