"""Instructions of runs, as callgrind counts them: the same on a busy machine as on an idle one.

The program makes a mark before and after each run (`runs.mark`), at which callgrind writes what
it has counted since the last one into a file of its own, so one process is enough for all runs,
and nobody pays for starting it but once. Counted are user instructions: neither the kernel nor
waiting for memory is in it.

Source: Valgrind manual, Callgrind, --dump-before; the format's `summary:` line.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAM = "valgrind"
MISSING = "valgrind is not installed: apt-get install valgrind"
LIMIT_SECONDS = 600
MARK = "getloadavg"

_summary = re.compile(rb"^summary: (\d+)$", re.MULTILINE).search


class NotMeasured(Exception):
    """Why there are no figures."""


def installed() -> bool:
    return shutil.which(PROGRAM) is not None


def instructions(module: str, *arguments: str) -> list[int]:
    """Of what `python -m module ...` does between its 1st and 2nd mark, 3rd and 4th, ..."""
    with TemporaryDirectory(prefix="pdgate-guard-") as folder:
        out = Path(folder) / "out"
        command = [
            *(PROGRAM, "--tool=callgrind", f"--dump-before={MARK}", f"--callgrind-out-file={out}"),
            *(sys.executable, "-m", module, *arguments),
        ]
        # Where strings land in a hash table is drawn anew in every process otherwise.
        env = os.environ | {"PYTHONHASHSEED": "0"}
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
        )
        if done.returncode:
            raise NotMeasured(f"the run under valgrind failed:\n{done.stderr[-4000:]}")
        parts = sorted(Path(folder).glob("out.*"), key=lambda path: int(path.suffix[1:]))
        return [counted(part.read_bytes()) for part in between_marks(parts)]


def between_marks(parts: Sequence[Path]) -> Sequence[Path]:
    """Part 1 is what came before the first mark, part 2 is the first run, and so on."""
    return parts[1::2]


def counted(profile: bytes) -> int:
    found = _summary(profile)
    if found is None:
        raise NotMeasured("callgrind wrote a profile without its sum")
    return int(found[1])
