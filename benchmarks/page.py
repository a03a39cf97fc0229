"""Tables of docs/performance.md that benchmarks write themselves, between two marks:

<!-- made: safety -->
...
<!-- end -->
"""

import datetime
import os
import platform
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

PAGE: Final = Path(__file__).parents[1] / "docs" / "performance.md"


def between(text: str, mark: str) -> str:
    """What stands there now. Raises LookupError for a page without that mark."""
    return _marked(text, mark)[2].strip()


def written(text: str, mark: str, made: str) -> str:
    """The page with `made` there. Raises LookupError for a page without that mark."""
    found = _marked(text, mark)
    return f"{text[: found.start()]}{found[1]}\n{made}\n\n{found[3]}{text[found.end() :]}"


def _marked(text: str, mark: str) -> re.Match[str]:
    marked = re.search(rf"(<!-- made: {mark} -->\n)(.*?)(<!-- end -->)", text, re.DOTALL)
    if marked is None:
        raise LookupError(f"the page has no {mark!r}")
    return marked


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown; all columns but the first two are numbers."""
    rule = ["---", "---", *["--:"] * (len(heads) - 2)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def conditions(rounds: int) -> str:
    """On which machine, how loaded: clocks are to be believed accordingly."""
    today = datetime.datetime.now(tz=datetime.UTC).strftime("%-d %B %Y")
    load, cores = os.getloadavg()[2], os.cpu_count()
    python = platform.python_version()
    return f"{today}, Python {python}, {rounds} rounds, {cores} cores with a load of {load:.0f}."
