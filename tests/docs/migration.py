"""The tables in docs/migration.md that come from the code: `python -m tests.docs.migration` writes them."""

from collections.abc import Mapping
from pathlib import Path

from pdgate.gateway.cli.compat.vllm_router import NEEDLESS, OTHERWISE, REFUSED

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
TABLES = {"otherwise": {**NEEDLESS, **OTHERWISE}, "refused": REFUSED}
END = "<!-- end -->"


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    for name, table in TABLES.items():
        mark = f"<!-- made: {name} -->\n"
        before, _, rest = text.partition(mark)
        _, _, after = rest.partition(END)
        text = f"{before}{mark}{_rows(table)}{END}{after}"
    return text


def _rows(table: Mapping[str, str]) -> str:
    rows = "".join(f"| `{flag}` | {why} |\n" for flag, why in table.items())
    return f"\n| vllm-router | here |\n|---|---|\n{rows}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
