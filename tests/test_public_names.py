"""Names that packages of others import stay where they were, although they are declared elsewhere now."""

from importlib import import_module

import pytest

import pdgate
from pdgate.forwarders.choices import Mode
from pdgate.protocols import priority
from pdgate.scheduling import DEFAULT_POLICY


@pytest.mark.parametrize(
    ("module", "name", "declared"),
    [
        ("forwarders.base", "Mode", Mode),
        ("scheduling.policy", "DEFAULT", DEFAULT_POLICY),
        ("scheduling.admission", "MOST_URGENT", priority.MOST_URGENT),
        ("scheduling.admission", "ORDINARY", priority.ORDINARY),
        ("scheduling.admission", "LEAST_URGENT", priority.LEAST_URGENT),
    ],
)
def test_a_public_name_is_what_was_declared(module: str, name: str, declared: object) -> None:
    assert getattr(import_module(f"pdgate.{module}"), name) is declared


def test_the_version_is_that_of_the_package() -> None:
    assert pdgate.__version__ == import_module("importlib.metadata").version("pdgate")
    assert not hasattr(pdgate, "no_such_name")
