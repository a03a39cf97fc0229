"""A setting, declared once: its key, type, bounds and default, its flag and help, and what a reload does.

    class TimeoutsSection(Section, panel=LIMITS, on_reload=OnReload.TIMES):
        idle_seconds: Annotated[Seconds, Setting("Seconds: ...", "--idle-timeout")] = 300.0
        \"\"\"What docs/configuration.md says of it, where the flag's help says less.\"\"\"

The command line (cli/flags.py), the type check of a file (load.py), a reload (lifecycle/reload.py) and
the table of docs/configuration.md are made of the declarations. Imports no more than pydantic, which
typer needs as well, so that `pdgate serve --help` stays quick.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar, Final, NamedTuple

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

CONNECTION: Final = "Where clients connect"
ENGINES: Final = "Engines"
SCHEDULING: Final = "Scheduling"
LIMITS: Final = "Limits"
SECURITY: Final = "Security"
INSIGHT: Final = "Insight"


class OnReload(Enum):
    """What takes a new value while the gateway runs (wiring/live.py), from the next call on."""

    RESTART = auto()
    """Nothing does: a reload that changes it is refused."""
    FLEET = auto()
    POLICIES = auto()
    MODELS = auto()
    TARGETS = auto()
    TIMES = auto()
    HEALTH = auto()
    DRAIN = auto()
    RULE = auto()
    INTAKE = auto()
    KEYS = auto()
    INSIGHT = auto()


@dataclass(frozen=True, slots=True)
class Setting:
    """What is declared of a key beside its type and default, as metadata of its type.

    Attributes:
        help: Of its flag.
        flag: Where it is not spelled as the key; None for tables, which have no flag.
        default: In words, where the value does not say it.
        panel: Of --help in a wide terminal; that of the section unless it is given.
        on_reload: That of the section unless it is given.
    """

    help: str
    flag: str | None = ""
    default: str = ""
    panel: str = ""
    on_reload: OnReload | None = None


class Section(BaseModel):
    """A table of settings."""

    # Flags are made of the fields alone, so the validators wait for a value.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    panel: ClassVar[str] = ""
    on_reload: ClassVar[OnReload] = OnReload.RESTART

    def __init_subclass__(
        cls, *, panel: str = "", on_reload: OnReload = OnReload.RESTART, **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        cls.panel, cls.on_reload = panel, on_reload


class Declared(NamedTuple):
    """
    Attributes:
        key: Dotted.
        flag: As it is typed; "" for tables.
    """

    key: str
    field: FieldInfo
    flag: str
    help: str
    default: str
    panel: str
    on_reload: OnReload


def declared(section: type[Section], prefix: str = "") -> Iterator[Declared]:
    """Every setting of the section and of those within, in the order of `--help`."""
    for name, field in section.model_fields.items():
        key, kind = f"{prefix}{name}", field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from declared(kind, f"{key}.")
            continue
        setting = next((one for one in field.metadata if isinstance(one, Setting)), None)
        if setting is None:
            raise TypeError(f"{section.__name__}.{name} declares no Setting")
        flag = "" if setting.flag is None else setting.flag or f"--{name.replace('_', '-')}"
        panel, on_reload = setting.panel or section.panel, setting.on_reload or section.on_reload
        yield Declared(key, field, flag, setting.help, setting.default, panel, on_reload)
