"""Check: its id, the sentence that it stands for, and how it ended."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdgate.lab.conformance.site import Site


class Broken(Exception):
    """The sentence is not true here; the message says what was seen instead."""


class NotApplicable(Exception):
    """A check that cannot be made here; the message says why."""


class Verdict(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Check:
    """
    Attributes:
        id: How it is called in reports and by `--check`.
        means: What is true if it passes.
        run: Raises Broken, NotApplicable.
    """

    id: str
    means: str
    run: "Callable[[Site], Awaitable[None]]"


@dataclass(frozen=True, slots=True)
class Result:
    """
    Attributes:
        reason: Of a verdict that is no pass.
    """

    check: Check
    verdict: Verdict
    reason: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.check.id}: {self.verdict}" + (f" ({self.reason})" if self.reason else "")


def check(id: str, means: str) -> "Callable[[Callable[[Site], Awaitable[None]]], Check]":
    """Makes a check of a function."""
    return lambda run: Check(id, means, run)
