"""A hook of MkDocs: files of the repository that pages link to become part of the site.

Pages are read in a checkout as well, so they link to `../benchmarks/RESULTS.md` or `../../deploy`
as they lie there. For the site each such file is taken along under repository/, text as a page, and
a folder as a list of what is in it; MkDocs then checks these links like all others.
"""

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.structure.files import File, Files

PICTURE = re.compile(r"!\[[^\]]*\]\((?P<path>[^):]+)\)")
LINK = re.compile(r"(?<=\]\()(?P<path>\.\./[^)#\s]*)(?P<anchor>#[^)\s]*)?(?=\))")
NOT_RUN = re.compile(r"^( *)<!-- not run here: (.+) -->\n", re.MULTILINE)
LABELLED = re.compile(r"^( *```\w+) ([^\n\"`{=]+)$", re.MULTILINE)
KEPT = PurePosixPath("repository")


def outside(page: str, link: str) -> PurePosixPath | None:
    """Where it leads from the root of the repository; None if it stays within docs/."""
    there = PurePosixPath(
        os.path.normpath(PurePosixPath("docs") / PurePosixPath(page).parent / link)
    )
    return None if there.parts[:1] == ("docs",) or there.parts[:1] == ("..",) else there


def kept_as(there: PurePosixPath, root: Path) -> PurePosixPath:
    """Its name in the site."""
    if (root / there).is_dir():
        return KEPT / there / "index.md"
    if there.suffix in (".md", ".png", ".svg"):
        return KEPT / there
    return KEPT / f"{there}.md"


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.config_file_path).parent
    waiting = {
        there
        for file in files.documentation_pages()
        for found in LINK.finditer(Path(file.abs_src_path or "").read_text(encoding="utf-8"))
        if (there := outside(file.src_uri, found["path"])) is not None
    }
    for there in sorted(waiting):
        if (root / there).exists():
            taken = str(kept_as(there, root))
            files.append(File.generated(config, taken, content=_content(there, root)))
            for picture in _pictures(there, root):
                content = (root / picture).read_bytes()
                files.append(File.generated(config, str(KEPT / picture), content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    root = Path(config.config_file_path).parent
    here = page.file.src_uri

    def moved(found: re.Match[str]) -> str:
        there = outside(here, found["path"])
        if there is None or here.startswith(str(KEPT)):
            return found[0]
        target = os.path.relpath(kept_as(there, root), PurePosixPath(here).parent)
        return f"{target}{found['anchor'] or ''}"

    # After its language a block of ours says what it is (tests/docs/pages.py); MkDocs would not take
    # that for a block at all.
    titled = LABELLED.sub(r'\1 title="\2"', LINK.sub(moved, markdown))
    return NOT_RUN.sub(_told, titled)


def _told(mark: re.Match[str]) -> str:
    """A comment of the source on the commands that follow (tests/docs/shell.py), for readers of the site."""
    indent, why = mark.groups()
    return f"{indent}*Not run by the tests: {why}.*\n\n"


def _pictures(there: PurePosixPath, root: Path) -> list[PurePosixPath]:
    """What a page of the repository shows."""
    if there.suffix != ".md":
        return []
    text = (root / there).read_text(encoding="utf-8")
    return [there.parent / found["path"] for found in PICTURE.finditer(text)]


def _content(there: PurePosixPath, root: Path) -> str:
    path = root / there
    if path.is_dir():
        names = sorted(f"- `{each.name}{'/' * each.is_dir()}`" for each in path.iterdir())
        return f"# {there}/\n\n" + "\n".join(name for name in names if "__pycache__" not in name)
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        # What it links to has been made for readers of a checkout.
        return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?://)[^)]*\)", r"\1", text)
    return f"# {there.name}\n\n`{there}`\n\n````{path.suffix[1:]}\n{text}\n````\n"
