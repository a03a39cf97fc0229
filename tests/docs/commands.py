"""docs/cli.md's part on each command, made from the functions that are the commands.

    <!-- made: commands -->
    ...
    <!-- end -->

`python -m tests.docs.commands` writes it anew. It reads signatures and not what typer makes of
them, so it does not depend on typer's version.
"""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from pdgate.__main__ import COMMANDS
from tests.docs.pages import DOCS

PAGE: Final = DOCS / "cli.md"

_MARKED = re.compile(r"(<!-- made: commands -->\n).*?(<!-- end -->)", re.DOTALL)
_WORDS: Final = {str: "text", int: "integer", float: "number", Path: "path"}


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    return _MARKED.sub(lambda mark: f"{mark[1]}\n{made()}\n{mark[2]}", text)


def made() -> str:
    return "\n".join("\n".join(_command(name)) + "\n" for name in COMMANDS)


def function_of(name: str) -> Any:
    module, _, function = COMMANDS[name].function.partition(":")
    return getattr(import_module(module), function)


def _command(name: str) -> Iterator[str]:
    function = function_of(name)
    yield f"## pdgate {name}\n"
    yield inspect.cleandoc(function.__doc__ or "") + "\n"
    if extra := COMMANDS[name].extra:
        yield f"It needs the extra `{extra}`: `pip install '.[{extra}]'` in a checkout.\n"
    yield "| flag | value | default | meaning |"
    yield "|---|---|---|---|"
    for cells in rows(name):
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def rows(name: str) -> Iterator[tuple[str, str, str, str]]:
    """Flag, value, default and meaning of each parameter."""
    function = function_of(name)
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind, told = _annotated(parameter.annotation)
        if kind is typer.Context:
            continue
        default = parameter.default
        flag = _flag(parameter.name, kind, told)
        yield f"`{flag}`", _value(kind), _default(default, told), told.help or ""


def _annotated(hint: Any) -> tuple[Any, ParameterInfo]:
    """The type without None, and what is told of the parameter."""
    told: ParameterInfo = OptionInfo()
    kind = hint
    if get_origin(hint) is Annotated:
        kind, *more = get_args(hint)
        told = next((one for one in more if isinstance(one, ParameterInfo)), told)
    if get_origin(kind) in (Union, UnionType):
        (kind,) = (one for one in get_args(kind) if one is not NoneType)
    return kind, told


def _flag(name: str, kind: Any, told: ParameterInfo) -> str:
    if isinstance(told, ArgumentInfo):
        return name.upper()
    # Within Annotated the first name is where a default would be.
    first = [told.default] if isinstance(told.default, str) else []
    if names := [*first, *(told.param_decls or ())]:
        return "`, `".join(names)
    flag = f"--{name.replace('_', '-')}"
    return f"{flag}`, `--no-{flag[2:]}" if kind is bool else flag


def _value(kind: Any) -> str:
    if kind is bool:
        return ""
    if get_origin(kind) is Literal:
        return " or ".join(f"`{one}`" for one in get_args(kind))
    if get_origin(kind) is list:
        return f"{_value(get_args(kind)[0])}, repeatable"
    return _WORDS[kind]


def _default(default: Any, told: ParameterInfo) -> str:
    if default is inspect.Parameter.empty:
        return "needed"
    if isinstance(told.show_default, str):
        return told.show_default
    if default in (None, "", False):
        return ""
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
