"""Settings of a proxy: a TOML file, or flags, -> what it is to do.

    listen = "127.0.0.1:9000"
    engine = "http://10.0.0.1:8100"
    seed = 7

    [[faults]]
    fault = "cut"
    after_bytes = 2000
    every = 3

Flags make the same tree, so both are checked alike. A fault of flags replaces those of the file.
"""

import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from pdgate.lab.chaos.fault import Fault
from pdgate.lab.chaos.plan import Plan, Rule
from pdgate.lab.chaos.proxy import address

MOST_PORT: Final = 65535
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")


class BadSettings(Exception):
    """What was asked for cannot be done; nothing was started."""


class _When(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of an entry of `faults` that say when, not what."""

    every: int = 1
    chance: float = 1.0
    first: int = 1
    last: int | None = None


class ChaosSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Attributes:
        listen: host:port for the gateway to call; port 0 takes a free one.
        engine: http://host:port of the engine.
        faults: One table each: what, and when.
        only: What begins so is disturbed; empty for everything, health checks too.
        per: What `every`, `first` and `last` count.
    """

    engine: str
    listen: str = "127.0.0.1:9000"
    seed: int = 0
    only: str = "POST "
    per: Literal["request", "connection"] = "request"
    faults: list[dict[str, Any]] = []

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])

    def plan(self) -> Plan:
        """Raises BadSettings."""
        rules = [_rule(entry, f"faults[{index}]") for index, entry in enumerate(self.faults)]
        return Plan(tuple(rules), self.seed, self.only.encode(), self.per)


def load(
    file: Path | None, flags: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]
) -> ChaosSettings:
    """The file with what flags said over it. Raises BadSettings."""
    tree = {**(_read(file) if file else {}), **flags}
    if faults:
        tree["faults"] = [dict(fault) for fault in faults]
    _check_keys(tree, ChaosSettings.__struct_fields__, "")
    settings: ChaosSettings = _convert(tree, ChaosSettings, "")
    try:
        address(settings.engine)
    except ValueError as error:
        raise BadSettings(str(error)) from None
    port = settings.listen.rpartition(":")[2]
    # isdecimal() alone takes the digits of every script.
    if not settings.host or not (port.isascii() and port.isdecimal() and int(port) <= MOST_PORT):
        raise BadSettings(f"listen is host:port, not {settings.listen!r}")
    settings.plan()
    return settings


def _rule(entry: Mapping[str, Any], where: str) -> Rule:
    times = _When.__struct_fields__
    if known := _keys_of(entry.get("fault")):
        _check_keys(entry, known, f"{where}: ")
    when: _When = _convert({k: v for k, v in entry.items() if k in times}, _When, where)
    what: Fault = _convert({k: v for k, v in entry.items() if k not in times}, Fault, where)
    try:
        return Rule(what, when.every, when.chance, when.first, when.last)
    except ValueError as error:
        raise BadSettings(f"{where}: {error}") from None


def _convert(tree: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(tree, kind)
    except msgspec.ValidationError as error:
        said = _MISSING.sub(_is_missing, str(error))
        raise BadSettings(f"{where}: {said}" if where else said) from None


def _is_missing(found: re.Match[str]) -> str:
    key = found[1]
    return f"{key!r} is missing: --{key.replace('_', '-')}, or the key of that name in the file"


def _check_keys(tree: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    """msgspec names what it does not know, and not what was meant. Raises BadSettings."""
    for key in tree:
        if key not in known:
            near = get_close_matches(key, known, 1)
            hint = (
                f"the nearest known one is {near[0]!r}"
                if near
                else f"known here are {', '.join(known)}"
            )
            raise BadSettings(f"{where}unknown key {key!r}; {hint}")


def _keys_of(fault: object) -> tuple[str, ...]:
    """What a fault of this name takes; of a name that is unknown, nothing."""
    for kind in get_args(Fault):
        if kind.__struct_config__.tag == fault:
            return ("fault", *kind.__struct_fields__, *_When.__struct_fields__)
    return ()


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSettings(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise BadSettings(f"{path} is not valid TOML: {error}") from None
