"""Contents of files on the local disk."""

import os
from pathlib import Path

import pytest

from pdgate.gateway.batch import blobs
from pdgate.gateway.batch.blobs import LocalBlobs, RemoteBlobs


@pytest.fixture(params=[LocalBlobs, lambda folder: RemoteBlobs("memory://of-blobs", folder)])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> blobs.Blobs:
    made: blobs.Blobs = request.param(tmp_path)
    return made


def test_a_content_is_for_us_alone_while_it_is_written(
    kept: blobs.Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first moment: whoever has opened it reads on, whatever its permissions become."""
    modes = list[int]()

    def look(*_: object) -> None:
        """Also in place of what would change them."""
        modes.extend(one.stat().st_mode & 0o777 for one in tmp_path.iterdir())

    monkeypatch.setattr(os, "chmod", look)
    monkeypatch.setattr(os, "fchmod", look)
    before = os.umask(0)
    try:
        with kept.write("a") as file:
            file.write(b"of one tenant")
            look()
    finally:
        os.umask(before)

    assert set(modes) == {0o600}
    with kept.read("a") as found:
        assert found.read() == b"of one tenant"


def test_a_content_is_not_written_through_a_link(kept: blobs.Blobs, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"as it was")
    (tmp_path / f"a{blobs.PART}").symlink_to(elsewhere)

    with kept.write("a") as file:
        file.write(b"of one tenant")

    assert elsewhere.read_bytes() == b"as it was"
    with kept.read("a") as found:
        assert found.read() == b"of one tenant"


def test_what_is_left_of_another_write_is_for_us_alone_too(
    kept: blobs.Blobs, tmp_path: Path
) -> None:
    left = tmp_path / f"a{blobs.PART}"
    left.write_bytes(b"half of it, and more than there is now")
    left.chmod(0o644)

    with kept.write("a") as file:
        assert left.stat().st_mode & 0o777 == 0o600
        file.write(b"whole")

    with kept.read("a") as found:
        assert found.read() == b"whole"
