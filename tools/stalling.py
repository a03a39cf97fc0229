"""A command on a machine that stalls: tests that give it milliseconds fail here, and not elsewhere.

    sudo python tools/stalling.py bash tools/isolated.sh .venv/bin/python -m pytest tests/gateway

The command and all that it starts are in a control group of their own, which is frozen at random
for up to STALL_SECONDS, a fifth of the time. Their clocks go on meanwhile, as on a machine that is
busy with others. It takes root, and control groups of either version.

Source: Linux, Documentation/admin-guide/cgroup-v2.rst (cgroup.freeze) and
cgroup-v1/freezer-subsystem.rst.
"""

import os
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

STALL_SECONDS = 0.4
BETWEEN_SECONDS = 4 * STALL_SECONDS
GROUPS = Path("/sys/fs/cgroup")
EMPTY_SECONDS = 10.0
"""What the last processes of a group take to be gone."""


def group() -> tuple[Path, Path, tuple[str, str]]:
    """A new group, the file that stops it, and what to write there: to freeze it, to go on."""
    name = f"pdgate-stalling-{os.getpid()}"
    if (GROUPS / "freezer").is_dir():
        made = GROUPS / "freezer" / name
        made.mkdir()
        return made, made / "freezer.state", ("FROZEN", "THAWED")
    made = GROUPS / name
    made.mkdir()
    return made, made / "cgroup.freeze", ("1", "0")


def stalled(command: list[str]) -> int:
    """Its exit status."""
    made, switch, (stop, go_on) = group()
    inside = ["bash", "-c", 'echo $$ >"$0" && exec "$@"', str(made / "cgroup.procs"), *command]
    try:
        with subprocess.Popen(inside) as process:
            while process.poll() is None:
                time.sleep(random.uniform(0, BETWEEN_SECONDS))
                switch.write_text(stop)
                time.sleep(random.uniform(0, STALL_SECONDS))
                switch.write_text(go_on)
    finally:
        switch.write_text(go_on)
        _remove(made)
    return process.returncode


def _remove(made: Path) -> None:
    until = time.monotonic() + EMPTY_SECONDS
    while made.exists() and time.monotonic() < until:
        with suppress(OSError):
            made.rmdir()
        time.sleep(0.05)


if __name__ == "__main__":
    sys.exit(stalled(sys.argv[1:]))
