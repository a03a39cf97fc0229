"""What the pages on protocols show is what the forwarders send."""

from pathlib import Path

import pytest

from pdgate.protocols import plugins
from tests.docs import wire

pytestmark = pytest.mark.source


@pytest.mark.parametrize("page", wire.pages(), ids=lambda page: page.stem)
def test_a_page_shows_every_leg_as_the_forwarder_makes_it(page: Path) -> None:
    """`python -m tests.docs.wire` writes the examples anew."""
    assert wire.shown(page) == wire.made(page)


def test_every_protocol_has_a_page() -> None:
    ours = {point for point in plugins.names(plugins.FORWARDERS) if _is_ours(point)}

    assert {page.stem for page in wire.pages()} == ours


def _is_ours(protocol: str) -> bool:
    package = plugins.find(plugins.FORWARDERS, "protocol", protocol).dist
    return package is not None and package.name == "pdgate"
