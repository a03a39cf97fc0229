"""docs/configuration.md's tables, made from the settings and the command line.

The page holds the prose; between two marks stands what is made here:

    <!-- made: keys -->
    ...
    <!-- end -->

What a key means is said below its declaration, or in the help of its flag. `python -m tests.docs.configuration` writes the tables anew.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pdgate.gateway.cli.flags import ENGINE_FLAGS
from pdgate.gateway.cli.serve import serve
from pdgate.gateway.config.api_keys import ApiKeyEntry
from pdgate.gateway.config.instances import InstanceEntry
from pdgate.gateway.config.jwt import JwtTenantEntry
from pdgate.gateway.config.sections import ModelEntry, ShareEntry
from pdgate.gateway.config.setting import Declared, OnReload, Section, declared
from pdgate.gateway.config.settings import Settings
from pdgate.protocols.instance import Instance
from tests.docs.pages import DOCS

LISTS: Final = ("instances", "models", "api_keys", "shares", "jwt.tenants")
"""Keys whose entries have a table of their own."""

PAGE: Final = DOCS / "configuration.md"

_MARKED = re.compile(r"(<!-- made: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n {8}.*)*)", re.MULTILINE)


def tables() -> dict[str, str]:
    """Mark -> table."""
    return {
        "keys": _table(("key", "type", "default", "flag", "reload", "meaning"), _keys()),
        "instances": _table(("key", "type", "default", "meaning"), _instance_keys()),
        "models": _table(("key", "type", "default", "meaning"), _entry_keys(ModelEntry)),
        "api_keys": _table(("key", "type", "default", "meaning"), _entry_keys(ApiKeyEntry)),
        "jwt_tenants": _table(("key", "type", "default", "meaning"), _entry_keys(JwtTenantEntry)),
        "shares": _table(("key", "type", "default", "meaning"), _entry_keys(ShareEntry)),
        "short": _table(("flag", "meaning"), _short_flags()),
    }


def page() -> str:
    """The page as it should be."""
    made = tables()
    text = PAGE.read_text(encoding="utf-8")
    return _MARKED.sub(lambda mark: f"{mark[1]}\n{made[mark[2]]}\n\n{mark[3]}", text)


def _keys() -> Iterator[tuple[str, ...]]:
    meanings = _said_below(Settings)
    for one in declared(Settings):
        if one.flag:
            # Where nothing more is said of a key, the help of its flag says enough.
            meaning = meanings.get(one.key) or one.help
            when = "restart" if one.on_reload is OnReload.RESTART else "live"
            yield f"`{one.key}`", _type_of(one.key), _default(one.field), _flag(one), when, meaning


def _instance_keys() -> Iterator[tuple[str, ...]]:
    """The record that an entry becomes explains what the entry does not."""
    meanings = {**_meanings(Instance), **_meanings(InstanceEntry)}
    for name, field in InstanceEntry.model_fields.items():
        kind = _type(InstanceEntry, name)
        yield f"`{name}`", kind, _default(field), meanings.get(name, "")


def _entry_keys(entry: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    meanings = _meanings(entry)
    for name, field in entry.model_fields.items():
        yield f"`{name}`", _type(entry, name), _default(field), meanings[name]


def _short_flags() -> Iterator[tuple[str, ...]]:
    for name, help in ENGINE_FLAGS.items():
        yield f"`--{name}`", help
    for name in ("config", "compat"):
        yield (
            f"`--{name}`",
            inspect.signature(serve).parameters[name].annotation.__metadata__[0].help,
        )


def _flag(one: Declared) -> str:
    return f"`--[no-]{one.flag[2:]}`" if one.field.annotation is bool else f"`{one.flag}`"


def _said_below(section: type[Section]) -> dict[str, str]:
    """Key -> the text below its declaration, of the section and of those within."""
    (tree,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(tree, ast.ClassDef)
    said = {
        field.target.id: " ".join(str(below.value.value).split())
        for field, below in pairwise(tree.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }
    for name, field in section.model_fields.items():
        if inner := _section(field.annotation):
            said |= {f"{name}.{key}": text for key, text in _said_below(inner).items()}
    return said


def _meanings(section: type) -> dict[str, str]:
    """Of the "Attributes:" of its docstring and of its bases', each on one line."""
    found: dict[str, str] = {}
    for one in reversed(section.__mro__):
        _, _, attributes = inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")
        found |= {name: " ".join(said.split()) for name, said in _ATTRIBUTE.findall(attributes)}
    return found


def _section(annotation: Any) -> type[Section] | None:
    is_one = isinstance(annotation, type) and issubclass(annotation, Section)
    return annotation if is_one else None


def _type_of(key: str) -> str:
    section: type[Section] = Settings
    *above, name = key.split(".")
    for part in above:
        section = _section(section.model_fields[part].annotation) or section
    return _type(section, name)


def _type(section: type[BaseModel], name: str) -> str:
    """In words, with the limits that the type check knows."""
    schema = _schema_of(section, name)
    limits = [
        f"{word} {schema[limit]}"
        for limit, word in (
            ("minimum", "from"),
            ("exclusiveMinimum", "above"),
            ("maximum", "to"),
        )
        if limit in schema
    ]
    return " ".join([_word(schema), *limits])


def _schema_of(section: type[BaseModel], name: str) -> dict[str, Any]:
    """The JSON schema of one key; of `X | None`, that of X."""
    whole = section.model_json_schema()
    found: dict[str, Any] = whole["properties"][name]
    for option in found.get("anyOf", ()):
        if option.get("type") != "null":
            found = option
    if reference := found.get("$ref"):
        found = whole["$defs"][reference.rsplit("/", 1)[1]]
    return found


def _word(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " or ".join(f"`{choice}`" for choice in schema["enum"])
    return {
        "string": "text",
        "integer": "integer",
        "number": "number",
        "boolean": "`true` or `false`",
        "array": "list of texts",
        "object": "table",
    }[schema["type"]]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    if field.default in (None, "", ()):
        return ""
    shown = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
    return f"`{shown}`"


def _table(heads: tuple[str, ...], rows: Iterator[tuple[str, ...]]) -> str:
    lines = [heads, tuple("--" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
