"""Checks of the Batch API's settings: its folder can be written, and its storage is one that fsspec knows.

A storage is not asked whether it is there: it may be away while the gateway starts, and calls do not need it.
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
        if section.storage:
            raise ConfigError("'batch.storage' needs 'batch.folder', for the state of batches")
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


def _check_storage(url: str) -> None:
    if find_spec("fsspec") is None:
        raise ConfigError(f"'batch.storage' needs one more package: {install('storage')}")
    import fsspec

    try:
        fsspec.core.url_to_fs(url)
    # What a storage of fsspec's says of its URL, or of what it needs, is of any kind.
    except Exception as error:  # noqa: BLE001
        raise ConfigError(f"'batch.storage': {error}") from None
