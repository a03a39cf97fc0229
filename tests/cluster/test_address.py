"""URLs that operators give for the store itself."""

import pytest

from pdgate.cluster.address import endpoints


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://10.0.0.1:2379", ("http://10.0.0.1:2379",)),
        ("https://e-0:2379, https://e-1:2379/", ("https://e-0:2379", "https://e-1:2379")),
        ("http://[::1]:2379", ("http://[::1]:2379",)),
    ],
)
def test_members_are_separated_by_commas(text: str, found: tuple[str, ...]) -> None:
    assert endpoints(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1:2379",
        "ftp://e:2379",
        "http://e",
        "http://e:0",
        "http://e:2379/v3",
        "http://e:2379?x",
        "http://me:secret@e:2379",
        "http://a:2379,",
    ],
)
def test_what_is_no_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a") as refused:
        endpoints(text)
    assert "secret" not in str(refused.value)
