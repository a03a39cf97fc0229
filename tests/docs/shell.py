"""The shell commands in code blocks of README.md and docs/, and what the page says of running them.

    <!-- run by: tests/deploy/test_rules.py -->      the nearest line above a block: that file runs it
    <!-- not run here: needs a cluster -->           nobody does, and why; the site says so, too

Without a mark test_commands_in_docs.py runs the block's commands itself. A block is one of commands
if it begins with a program (PROGRAMS); of one that shows `$ ` only these lines are typed.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.pages import DOCS

ROOT: Final = DOCS.parent
PROGRAMS: Final = (
    *("bash", "curl", "docker", "git", "helm", "jq", "kubectl", "make", "pdgate", "pip"),
    *("promtool", "python", "redis-cli", "systemctl", "vllm"),
)
SHELLS: Final = ("sh", "bash", "shell", "console")

_FENCE = re.compile(r"\s*```+(\w*)")
_MARK = re.compile(r"\s*<!-- (run by|not run here): (.+) -->")
_SETTING = re.compile(r"[A-Z_]+=")
_OPERATORS: Final = ("|", "&&", "||", "&", ";")


@dataclass(frozen=True, slots=True)
class Command:
    """
    Attributes:
        text: As typed; several lines where it goes on.
        run_by: The test that runs it.
        not_run: Why nobody does.
    """

    page: str
    line: int
    text: str
    run_by: str = ""
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    line: int
    lines: list[str]
    mark: re.Match[str] | None


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def commands() -> list[Command]:
    return [found for page in pages() for found in of_page(page)]


def of_page(page: Path) -> Iterator[Command]:
    name = str(page.relative_to(ROOT))
    for block in blocks(page.read_text(encoding="utf-8").splitlines()):
        kind, said = (block.mark[1], block.mark[2]) if block.mark else ("", "")
        marks = {"run by": {"run_by": said}, "not run here": {"not_run": said}}.get(kind, {})
        for line, text in typed(block):
            yield Command(name, line, text, **marks)


def blocks(lines: list[str]) -> Iterator[Block]:
    """Fenced ones, and those that are indented by four after an empty line."""
    number, above = 0, ""
    while number < len(lines):
        begun, line = number, lines[number]
        fence = _FENCE.match(line)
        if fence:
            number += 1
            while not lines[number].strip().startswith("```"):
                number += 1
            number += 1
            inside = lines[begun + 1 : number - 1]
            yield Block(fence[1], begun + 2, inside, _MARK.match(above))
        elif line.startswith("    ") and not (begun and lines[begun - 1].strip()):
            while number < len(lines) and lines[number].startswith("    "):
                number += 1
            yield Block("", begun + 1, lines[begun:number], _MARK.match(above))
            if number + 1 < len(lines) and lines[number + 1].startswith("    "):
                continue  # After an empty line more of it, for which the mark stands as well.
        else:
            number += 1
            above = line if line.strip() else above
            continue
        above = ""


def typed(block: Block) -> Iterator[tuple[int, str]]:
    """Line number and text of each command of a block of commands."""
    prompted = any(line.lstrip().startswith("$ ") for line in block.lines)
    if not prompted and not (block.language in ("", *SHELLS) and _begins(block)):
        return
    whole = ""
    for number, line in enumerate(block.lines, block.line):
        if not whole:
            if prompted and not line.lstrip().startswith("$ "):
                continue
            line, first = line.lstrip().removeprefix("$ "), number
            if not line or line.startswith("#"):
                continue
        whole = f"{whole}\n{line}" if whole else line
        if _is_whole(whole):
            yield first, whole
            whole = ""
    if whole:
        raise ValueError(f"a command does not end: {whole}")


def parts(text: str) -> list[list[str]]:
    """The words of each program of a pipeline or list, without settings before it, redirections
    and comments."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    words = list(lexer)
    while words:
        word = words.pop(0)
        if word in _OPERATORS:
            found.append([])
        elif word[0] in "<>":
            if found[-1] and found[-1][-1].isdigit():
                found[-1].pop()
            words.pop(0)
        elif found[-1] or not _SETTING.match(word):
            found[-1].append(word)
    return [part for part in found if part]


def _begins(block: Block) -> bool:
    for line in block.lines:
        words = [word for word in line.split() if not _SETTING.match(word)]
        if words and not words[0].startswith("#"):
            return program(words[0]) in PROGRAMS
    return False


def program(word: str) -> str:
    return "python" if re.fullmatch(r"(\.venv/bin/)?python3?", word) else Path(word).name


def _is_whole(text: str) -> bool:
    if text.rstrip().endswith(("\\", "|", "&&")):
        return False
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True
