"""Tables in RESULTS.md that a benchmark rewrites, and what the machine was when it ran.

<!-- transfer -->       what stands between the two is the benchmark's
...
<!-- /transfer -->
"""

import os
import platform
import re
import time
from pathlib import Path
from typing import Final

QUIET_LOAD: Final = 0.25
"""Average of runnable programs before the run, of all others on the machine."""


def rewrite(page: Path, name: str, text: str) -> None:
    """Raises ValueError if the page has no such place."""
    place = re.compile(rf"(<!-- {name} -->\n).*(<!-- /{name} -->)", re.DOTALL)
    old = page.read_text(encoding="utf-8")
    if place.search(old) is None:
        raise ValueError(f"{page} has no place for {name}")
    # By a function, so that nothing in the text is taken for a group.
    page.write_text(
        place.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", old), encoding="utf-8"
    )


def machine(rounds: int) -> str:
    """A line; to be asked for before the run, which is a load of its own."""
    load = os.getloadavg()[0]
    state = "quiet" if load <= QUIET_LOAD else "disturbed: others used the machine"
    return (
        f"{time.strftime('%Y-%m-%d %H:%M')}, {rounds} rounds, {os.cpu_count()} {platform.machine()} "
        f"cores, CPython {platform.python_version()}; load before the run {load:.1f} ({state})."
    )
