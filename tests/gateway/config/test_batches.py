"""Settings of the Batch API that cannot be, each a sentence that names the key."""

from pathlib import Path

import pytest

from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.config.checks import check
from pdgate.gateway.config.sections import Batch


@pytest.mark.parametrize(
    ("folder", "storage", "state", "sentence"),
    [
        ("", "memory://x", "", "'batch.storage' needs 'batch.folder'"),
        ("", "", "redis://h:1", "'batch.state' needs 'batch.folder'"),
        ("here", "nope://x", "", "'batch.storage': Protocol not known: nope"),
        ("here", "", "redis://h:1", "'batch.state' needs 'batch.storage'"),
        ("file/below", "", "", "'batch.folder': cannot make"),
    ],
)
def test_what_cannot_be_is_named(
    folder: str, storage: str, state: str, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    section = Batch(folder=folder and str(tmp_path / folder), storage=storage, state=state)

    with pytest.raises(ConfigError) as error:
        check(Settings(batch=section))

    assert sentence in str(error.value)


def test_a_storage_and_a_redis_are_not_asked_at_the_start(tmp_path: Path) -> None:
    """They may be away; the folder is made."""
    folder, state = str(tmp_path / "a" / "b"), "rediss://:secret@192.0.2.1:1/2"

    check(Settings(batch=Batch(folder=folder, storage="s3://bucket/folder", state=state)))

    assert (tmp_path / "a" / "b").is_dir()
