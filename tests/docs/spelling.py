"""Whether a command could be typed as it stands: each program's own words, and nothing is run but
`--help` of modules.

`...` among the words stands for what readers add, and `[--flag N]` for what they may add.
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from json import loads
from typing import Any, Final

from typer.main import get_command

from pdgate.__main__ import COMMANDS, _in_our_words, app, loaded
from tests.docs.pages import blocks
from tests.docs.shell import ROOT, Command, parts, program
from tests.support.waiting import PATIENCE_SECONDS

Words = Sequence[str]

_OF_THE_REPOSITORY: Final = ("benchmarks/", "deploy/", "tests/", "tools/")


class Misspelt(AssertionError):
    """What is wrong with a command."""


def check(command: Command) -> None:
    """Raises Misspelt."""
    for words in parts(command.text):
        try:
            _program(command, words)
        except Misspelt as error:
            raise Misspelt(f"{command}: {error}\n    {command.text}") from None


def check_pdgate(words: Words) -> Any:
    """The context of a `pdgate` command line: its flags exist and their values can be read."""
    words = [word.strip("[]") for word in words if word != "..."]
    group = get_command(app)
    if words[0].startswith("-"):
        known = {name for parameter in group.params for name in parameter.opts}
        if words[0] not in known:
            raise Misspelt(f"pdgate has no {words[0]}")
        return None
    name, *rest = words
    if name not in COMMANDS:
        raise Misspelt(f"there is no pdgate {name}")
    if rest == ["--help"]:
        return None
    if name == "serve":
        rest = _in_our_words(rest)
    try:
        return loaded(name).make_context(f"pdgate {name}", list(rest))
    except Exception as error:  # noqa: BLE001 - typer's own click, whose classes are private
        raise Misspelt(f"{type(error).__name__}: {getattr(error, 'message', error)}") from None


def _program(command: Command, words: Words) -> None:
    name, rest = program(words[0]), words[1:]
    for word in words:
        if word.startswith(_OF_THE_REPOSITORY) and not (ROOT / word).parent.exists():
            raise Misspelt(f"there is no {word}")
    check_one = CHECKS.get(name)
    if check_one is None:
        raise Misspelt(f"nobody knows how {name} is spelt: see tests/docs/spelling.py")
    check_one(command, rest)


def _pdgate(command: Command, words: Words) -> None:
    check_pdgate(words)


def _make(command: Command, words: Words) -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for word in words:
        name, is_setting, value = word.partition("=")
        if is_setting:
            if f"$({name})" not in text and f"$(or $({name})" not in text:
                raise Misspelt(f"the Makefile does not read {name}")
            runs = rf"^{words[0]}:.*\n\t.*-m ([\w.]+)(.*) \$\({name}\)"
            recipe = re.search(runs, text, re.MULTILINE)
            if recipe is None:
                raise Misspelt(f"make {words[0]} does not read {name}")
            if recipe[1] == "pdgate":
                check_pdgate([*recipe[2].split(), *value.split()])
            else:
                _flags_of_module(recipe[1], value.split())
        elif not re.search(rf"^{re.escape(word)}:", text, re.MULTILINE):
            raise Misspelt(f"the Makefile has no target {word}")


def _python(command: Command, words: Words) -> None:
    if words[0] != "-m":
        files = {block.label for block in blocks(ROOT / command.page)}
        if words[0] not in files and not (ROOT / words[0]).exists():
            raise Misspelt(f"there is no {words[0]}, here or on the page")
        return
    module, rest = words[1], words[2:]
    if find_spec(module) is None:
        raise Misspelt(f"there is no module {module}")
    if module == "pdgate":
        check_pdgate(rest)
    elif module != "pytest":
        _flags_of_module(module, rest)


def _flags_of_module(module: str, words: Words) -> None:
    wanted = {flag for word in words for flag in re.findall(r"^\[?(--[a-z-]+)", word)}
    known = _help(module) if wanted else set()
    if unknown := wanted - known:
        raise Misspelt(f"python -m {module} has no {', '.join(sorted(unknown))}")


@cache
def _help(module: str) -> set[str]:
    said = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return set(re.findall(r"--[a-z-]+", said.stdout))


def _bash(command: Command, words: Words) -> None:
    if not (ROOT / words[0]).exists():
        raise Misspelt(f"there is no {words[0]}")
    if words[1:]:
        _program(command, words[1:])


def _pip(command: Command, words: Words) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for extra in re.findall(r"pdgate\[([\w,-]+)\]", " ".join(words)):
        if unknown := set(extra.split(",")) - project["optional-dependencies"].keys():
            raise Misspelt(f"pdgate has no extra {', '.join(unknown)}")


def _vllm(command: Command, words: Words) -> None:
    """What vLLM's own flags are is not known here; what they hold is JSON."""
    for flag, value in pairwise(words):
        if flag.endswith("-config"):
            try:
                loads(value)
            except ValueError as error:
                raise Misspelt(f"{flag}: {error}") from None


def _json_body(command: Command, words: Words) -> None:
    """Of curl."""
    for flag, value in pairwise(words):
        if flag == "-d":
            loads(value)


def _as_it_is(command: Command, words: Words) -> None:
    """A program of others, of which only the files are checked that it is given."""


CHECKS: Final[Mapping[str, Callable[[Command, Words], None]]] = {
    "bash": _bash,
    "curl": _json_body,
    "docker": _as_it_is,
    "helm": _as_it_is,
    "jq": _as_it_is,
    "kubectl": _as_it_is,
    "make": _make,
    "pdgate": _pdgate,
    "pip": _pip,
    "promtool": _as_it_is,
    "python": _python,
    "redis-cli": _as_it_is,
    "vllm": _vllm,
}
