"""The flags of `pdgate serve`: made of the settings, and turned back into their keys."""

import inspect
from collections.abc import Callable, Iterator
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer

from pdgate.gateway.config.setting import Declared, declared
from pdgate.gateway.config.settings import Settings

ENGINE_FLAGS: Final = {
    "instance": "One engine, as role=prefill,url=http://h:p and, if need be, kv=h:p, protocol=, "
    "model=, generation=, dp=, dp_rank=, dp_size=, pair=, id=, host=, rack=, zone=. Repeat it. "
    "The engines of flags replace those of the file.",
    "prefill": "URL of a prefill engine; repeat it.",
    "decode": "URL of a decode engine; repeat it.",
    "encode": "URL of an engine that encodes images, sound and video for prefill (vLLM's EPD); repeat it.",
    "plain": "URL of an engine that does both.",
}
"""Flags that together are the key `instances`, with their help."""


def parameter_of(flag: str) -> str:
    """--idle-timeout -> idle_timeout"""
    return flag[2:].replace("-", "_")


SETTINGS: Final = {parameter_of(one.flag): one for one in declared(Settings) if one.flag}
"""Parameter -> its setting."""


def with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command, its **flags being those of the settings, in the order of their declaration."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    named = [one for one in own if one.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*named, *_parameters()])  # type: ignore[attr-defined]
    return command


def _parameters() -> Iterator[inspect.Parameter]:
    for one in declared(Settings):
        if one.flag:
            yield _parameter(parameter_of(one.flag), _kind(one), one.panel, one.help, shown(one))
        elif one.key == "instances":
            for name, help in ENGINE_FLAGS.items():
                yield _parameter(name, list[str], one.panel, help)


def _parameter(name: str, kind: Any, panel: str, help: str, shown: str = "") -> inspect.Parameter:
    """A flag whose default is the setting's (None here), shown in words."""
    option = typer.Option(help=help, rich_help_panel=panel, show_default=shown or False)
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, option],
    )


def _kind(one: Declared) -> Any:
    """What a shell can give: no bounds, which the type check of the settings knows, and no enums."""
    kind = one.field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not NoneType)
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return Literal[tuple(each.value for each in kind)]
    return list[str] if get_origin(kind) is tuple else kind


def shown(one: Declared) -> str:
    """The default in words; nothing where nothing is the default."""
    if one.default:
        return one.default
    match one.field.default:
        case None | ():
            return ""
        case bool(is_so):
            return "yes" if is_so else "no"
        case float(number):
            return f"{number:g}"
        case default:
            return str(default)


def overrides(flags: dict[str, Any]) -> dict[str, Any]:
    """What the flags that were given put over the file: dotted key -> value."""
    from pdgate.gateway.config.instances import from_flag

    given = {name: value for name, value in flags.items() if value not in (None, [], ())}
    instances = [from_flag(text) for text in given.pop("instance", ())]
    for role in ("prefill", "decode", "plain", "encode"):
        instances += [{"role": role, "url": url} for url in given.pop(role, ())]
    kept = {SETTINGS[name].key: value for name, value in given.items()}
    return {**kept, "instances": instances} if instances else kept
