"""The secret of the admin routes is checked at the start, and never shown."""

from pathlib import Path

import pytest

from pdgate.gateway.config import ConfigError, load

SECRET = "a-secret-of-sixteen-and-more"


def test_a_token_is_what_the_file_holds(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")

    assert load(None, {"admin_token_file": str(file)}).admin_token_file == str(file)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "cannot read"),
        (b"", "one line of printable characters"),
        (b"short\n", "at least 16"),
        (b"a secret with spaces in it", "none of them a space"),
        ("ein-geheimnis-f\u00fcr-uns".encode(), "not ASCII"),
    ],
)
def test_one_that_would_not_do_ends_the_start(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=complaint) as caught:
        load(None, {"admin_token_file": str(file)})

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["10.0.0.1:6379", "http://h", "redis:", "redis:///0"])
def test_a_redis_url_is_one_of_redis(url: str) -> None:
    with pytest.raises(ConfigError, match="'redis'"):
        load(None, {"redis": url})
