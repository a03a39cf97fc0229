"""Translation of another router's command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn


class NotTaken(Exception):
    """What it asks for cannot be had here, or is wrong; the message says what to do instead."""


@dataclass
class FlagTranslation:
    """
    Attributes:
        ours: Flags of `pdgate serve`.
        notes: What is done in another way, or needs no flag; one sentence each.
    """

    ours: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def flag(self, name: str, value: object) -> None:
        self.ours += [name, str(value)]

    def note(self, flag: str, why: str) -> None:
        self.notes.append(f"{flag}: {why}")


class Flags(argparse.ArgumentParser):
    """Another router's flags, of which only those that are given are there."""

    def __init__(self, prog: str) -> None:
        super().__init__(
            prog, add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS
        )

    def error(self, message: str) -> NoReturn:
        raise NotTaken(message)

    def read(self, args: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
        """Flag -> value, and what is none of its flags. Raises NotTaken."""
        found, rest = self.parse_known_args(args)
        return {f"--{name.replace('_', '-')}": value for name, value in vars(found).items()}, rest
