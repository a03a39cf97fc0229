"""Third parties' tests import the chaos kit and conformance by the names that these had before."""

import sys
from importlib import import_module

import pytest

from pdgate.lab.processes import ProcessFailed


@pytest.mark.parametrize(
    ("former", "now"),
    [
        ("pdgate.chaos", "pdgate.lab.chaos"),
        ("pdgate.operations.conformance", "pdgate.lab.conformance"),
    ],
)
def test_a_former_name_has_all_that_it_had_and_names_the_new_one(
    former: str, now: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, former, raising=False)

    with pytest.warns(DeprecationWarning, match=f"{former} is called {now} now"):
        old = import_module(former)

    new = import_module(now)
    assert all(getattr(old, name) is getattr(new, name) for name in new.__all__)


def test_the_error_of_a_program_has_its_former_name_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pdgate.chaos", raising=False)

    with pytest.warns(DeprecationWarning, match="pdgate.lab.chaos"):
        former = import_module("pdgate.chaos")

    assert former.ProgramFailed is ProcessFailed
