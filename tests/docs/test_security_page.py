"""The page on security has the bounds and the lists that the code has."""

import pytest

from pdgate.gateway.front import limits
from pdgate.gateway.front.crowd import LOOSE_BYTES, MOST_HANDSHAKES, STRANGE_BYTES
from pdgate.gateway.front.hot_protocol import TLS_BYTES
from pdgate.gateway.front.limits import HEAD_SECONDS, MAX_HEAD_BYTES, MAX_HEADERS
from pdgate.gateway.intake import HOLDERS
from pdgate.gateway.security.addresses import IN_PLACE
from pdgate.gateway.security.tls import MAX_HANDSHAKE_BYTES
from pdgate.gateway.upstream.settings import FORWARDED
from tests.docs.pages import DOCS

pytestmark = pytest.mark.source


@pytest.fixture
def text() -> str:
    return " ".join((DOCS / "operations" / "security.md").read_text(encoding="utf-8").split())


def test_the_page_lists_the_headers_that_pass(text: str) -> None:
    listed = text.partition("To engines go, of a client's headers: ")[2].partition(" and those")[0]

    assert {name.strip("`").encode() for name in listed.split(", ")} == FORWARDED - {
        b"authorization"
    }


def test_the_page_has_the_bounds_of_a_request(text: str) -> None:
    assert f"more than {MAX_HEAD_BYTES >> 10} KiB, or more than {MAX_HEADERS} headers" in text
    assert f"takes more than {HEAD_SECONDS:g} s" in text
    pace = f"{limits.BODY_BYTES_PER_SECOND >> 10} KiB a second"
    assert f"takes more than {limits.BODY_SECONDS:g} s, or after" in text
    assert f"after {limits.BODY_GRACE_SECONDS:g} s has brought less than {pace}" in text
    assert f"of which nothing is read for {limits.UNREAD_SECONDS:g} s" in text
    assert f"more than {limits.MAX_EARLY_REQUESTS} requests before" in text
    assert f"at most {LOOSE_BYTES >> 20} MiB in each process" in text
    handshake = f"{limits.HANDSHAKE_SECONDS:g} s, or more than {MAX_HANDSHAKE_BYTES >> 10} KiB"
    assert f"a TLS handshake that takes more than {handshake}" in text
    assert f"in each process {MOST_HANDSHAKES} may be under way" in text
    small = STRANGE_BYTES // TLS_BYTES
    assert f"at most {STRANGE_BYTES >> 20} MiB, which is {small} that say little" in text


def test_the_page_has_the_words_that_clients_see(text: str) -> None:
    assert f"`{IN_PLACE.decode()}`" in text
    assert "inside " + ", ".join(f"`{name}`" for name in HOLDERS) in text
