"""Secrets come from files, and errors name only these."""

from pathlib import Path

import pytest

from pdgate.cluster import secret


def test_what_surrounds_a_secret_is_no_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "it").write_text("pass word\n")

    assert secret.read(str(tmp_path / "it")) == "pass word"


@pytest.mark.parametrize(
    ("content", "why"),
    [("short", "at least 16"), ("with a space in it", "none of them a space")],
)
def test_a_token_is_long_and_fits_into_a_header(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "it").write_text(content)

    with pytest.raises(ValueError, match=why) as refused:
        secret.token(str(tmp_path / "it"))
    assert content not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"two\nlines", b"\xff\xfe"])
def test_what_is_no_line_of_text_is_no_secret(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "it").write_bytes(content)

    with pytest.raises(ValueError, match=str(tmp_path)):
        secret.read(str(tmp_path / "it"))


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match="cannot read /nowhere: No such file"):
        secret.read("/nowhere")
