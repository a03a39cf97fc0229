"""Checks of the Batch API's settings: its folder can be written, its storage is one that fsspec knows, and those who
share its state share its files.

A storage, or a Redis, is not asked whether it is there: it may be away while the gateway starts, and calls do not
need it.
"""

import os
from importlib.util import find_spec
from pathlib import Path

from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.sections import Batch
from pdgate.protocols.extras import install


def check_batches(section: Batch) -> None:
    """Make their folder. Raise ConfigError."""
    if not section.folder:
        for key in ("storage", "state"):
            if getattr(section, key):
                raise ConfigError(f"'batch.{key}' needs 'batch.folder', for what is being written")
        return
    folder = Path(section.folder)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"'batch.folder': cannot make {folder}: {error.strerror}") from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"'batch.folder': {folder} cannot be written")
    if section.storage:
        _check_storage(section.storage)
    if section.state:
        _check_state(section)


def _check_state(section: Batch) -> None:
    if not section.storage:
        raise ConfigError(
            "'batch.state' needs 'batch.storage': gateways that share batches share their files, too, "
            "as at s3://bucket/folder, or at file:///folder where a folder is shared"
        )
    if find_spec("redis") is None:
        raise ConfigError(f"'batch.state' needs one more package: {install('redis')}")


def _check_storage(url: str) -> None:
    if find_spec("fsspec") is None:
        raise ConfigError(f"'batch.storage' needs one more package: {install('storage')}")
    import fsspec

    try:
        fsspec.core.url_to_fs(url)
    # What a storage of fsspec's says of its URL, or of what it needs, is of any kind.
    except Exception as error:  # noqa: BLE001
        raise ConfigError(f"'batch.storage': {error}") from None
