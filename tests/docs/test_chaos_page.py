"""What docs/operations/fault-injection.md shows is what there is."""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from pdgate.lab.chaos import Cut, Delay, Rule
from pdgate.lab.chaos.cli import chaos
from pdgate.lab.chaos.fault import Fault
from pdgate.lab.chaos.settings import load
from tests.docs.pages import DOCS, code, labelled, table

PAGE = DOCS / "operations" / "fault-injection.md"
pytestmark = pytest.mark.source

FAULTS = [kind.__struct_config__.tag for kind in get_args(Fault)]


def test_the_file_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "chaos.toml"
    path.write_text(labelled(PAGE, "toml")["chaos.toml"])

    rules = (Rule(Cut(2000), every=100), Rule(Delay(0.5), chance=0.01))
    assert load(path, {}, []).plan().rules == rules


def test_every_fault_is_described_and_the_command_takes_it() -> None:
    described = [row[0].strip("`") for row in table(PAGE) if len(row) == 4]

    assert described == FAULTS
    assert set(FAULTS) == set(chosen_from(inspect.signature(chaos).parameters["fault"]))


def chosen_from(flag: inspect.Parameter) -> Iterator[str]:
    """Annotated[Literal[...] | None, ...] -> the words of the literal."""
    for part in get_args(get_args(flag.annotation)[0]):
        yield from get_args(part)


def test_every_flag_of_the_page_is_one_of_the_command() -> None:
    page = PAGE.read_text(encoding="utf-8")
    known = set(inspect.signature(chaos).parameters)
    # Of the gateway and of an engine, in the same examples.
    others = {"prefill", "decode", "port"}

    shown = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", page)}

    assert shown - others <= known
    assert known <= shown


def test_each_fault_names_the_fields_that_it_has() -> None:
    fields = {kind.__struct_config__.tag: set(kind.__struct_fields__) for kind in get_args(Fault)}

    for row in (row for row in table(PAGE) if len(row) == 4):
        flags = {flag.removeprefix("--").replace("-", "_") for flag in code(row[1])}
        assert flags == fields[row[0].strip("`")]
