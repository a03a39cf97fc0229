"""The documentation site: docs/ prepared for Zensical, and built with every warning an error.

    docs/*.md, and the files of the repository that they link to
      -> build/docs/docs     links moved, sequence diagrams drawn, marks of tests put in words
      -> build/docs/site     `zensical build --strict`

Pages are read in a checkout as well, so they link to `../benchmarks/RESULTS.md` or `../../deploy`
as they lie there. For the site each such file is copied under repository/, text as a page, and a
folder as a list of its content; Zensical then checks these links like all others. Zensical runs no
hooks of a project, so all of this is done before it starts.

    python -m tools.docs_site [FOLDER]      default build/docs
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tools.sequence import with_figures

ROOT: Final = Path(__file__).parents[1]
CONFIG: Final = ROOT / "zensical.toml"

PICTURE: Final = re.compile(r"!\[[^\]]*\]\((?P<path>[^):]+)\)")
LINK: Final = re.compile(r"(?<=\]\()(?P<path>\.\./[^)#\s]*)(?P<anchor>#[^)\s]*)?(?=\))")
NOT_RUN: Final = re.compile(r"^( *)<!-- not run here: (.+) -->\n", re.MULTILINE)
LABELLED: Final = re.compile(r"^( *```\w+) ([^\n\"`{=]+)$", re.MULTILINE)
KEPT: Final = PurePosixPath("repository")


class Wrong(ValueError):
    """A fault of the pages that Zensical does not look for."""


def redirects(config: dict[str, Any]) -> dict[str, str]:
    """Return old page -> page."""
    found: dict[str, str] = config["project"]["plugins"]["redirects"]["redirect_maps"]
    return found


def check_menu(pages: set[str], config: dict[str, Any]) -> None:
    """Raise Wrong if a page is in no menu, or is not there for the menu or for an old address."""

    def listed(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for below in entry.values() if isinstance(entry, dict) else entry:
                yield from listed(below)

    if wrong := sorted(pages ^ set(listed(config["project"]["nav"]))):
        raise Wrong(f"only in docs/ or only in the menu: {', '.join(wrong)}")
    old = redirects(config)
    if wrong := sorted({page for page in old.values() if page not in pages} | (pages & old.keys())):
        raise Wrong(f"redirects from a page, or to none: {', '.join(wrong)}")


def check_pictures(page: str, markdown: str) -> None:
    """Raise Wrong if a page shows a picture that is not there."""
    folder = (ROOT / "docs" / page).parent
    for found in PICTURE.finditer(markdown):
        if not (folder / found["path"]).is_file():
            raise Wrong(f"{page} shows {found['path']}, which is not there")


def outside(page: str, link: str) -> PurePosixPath | None:
    """Return the target of a link from the root of the repository; None if it stays within docs/."""
    there = PurePosixPath(
        os.path.normpath(PurePosixPath("docs") / PurePosixPath(page).parent / link)
    )
    return None if there.parts[:1] == ("docs",) or there.parts[:1] == ("..",) else there


def kept_as(there: PurePosixPath) -> PurePosixPath:
    """Return the name in the site of a file or a folder of the repository."""
    if (ROOT / there).is_dir():
        return KEPT / there / "index.md"
    if there.suffix in (".md", ".png", ".svg"):
        return KEPT / there
    return KEPT / f"{there}.md"


def prepared(page: str, markdown: str) -> str:
    """Return a page of docs/ as the site shows it."""

    def moved(found: re.Match[str]) -> str:
        there = outside(page, found["path"])
        if there is None or not (ROOT / there).exists():
            return found[0]
        target = os.path.relpath(kept_as(there), PurePosixPath(page).parent)
        return f"{target}{found['anchor'] or ''}"

    # A label follows the language of a block of ours (tests/docs/pages.py); Markdown has no such thing.
    titled = LABELLED.sub(r'\1 title="\2"', LINK.sub(moved, markdown))
    # Marks for the tests (tests/docs/shell.py), in words for readers.
    return with_figures(NOT_RUN.sub(r"\1*Not run by the tests: \2.*\n\n", titled))


def prepare(folder: Path) -> None:
    """Write the input of Zensical; raise Wrong."""
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    check_menu(pages, tomllib.loads(CONFIG.read_text(encoding="utf-8")))
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(CONFIG, folder)
    for page in sorted(pages):
        at = folder / "docs" / page
        markdown = at.read_text(encoding="utf-8")
        check_pictures(page, markdown)
        at.write_text(prepared(page, markdown), encoding="utf-8")
        for found in LINK.finditer(markdown):
            there = outside(page, found["path"])
            if there is not None and (ROOT / there).exists():
                _keep(there, folder / "docs")


def _keep(there: PurePosixPath, docs: Path) -> None:
    """Copy a file of the repository, the pictures that it shows included."""
    at = docs / kept_as(there)
    at.parent.mkdir(parents=True, exist_ok=True)
    if there.suffix in (".png", ".svg"):
        shutil.copy(ROOT / there, at)
        return
    at.write_text(_content(there), encoding="utf-8")
    if there.suffix == ".md":
        for found in PICTURE.finditer((ROOT / there).read_text(encoding="utf-8")):
            picture = there.parent / found["path"]
            (docs / KEPT / picture).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / picture, docs / KEPT / picture)


def _content(there: PurePosixPath) -> str:
    path = ROOT / there
    if path.is_dir():
        names = sorted(f"- `{each.name}{'/' * each.is_dir()}`" for each in path.iterdir())
        return f"# {there}/\n\n" + "\n".join(name for name in names if "__pycache__" not in name)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        # Its links were made for readers of a checkout.
        return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?://)[^)]*\)", r"\1", text)
    return f"# {there.name}\n\n`{there}`\n\n````{path.suffix[1:]}\n{text}\n````\n"


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "docs"
    prepare(folder)
    build = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    config = str((folder / CONFIG.name).resolve())
    return subprocess.run([*build, "--config-file", config], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
