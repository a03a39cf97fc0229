"""Contents of files, by name, in a folder of the local disk or at a storage of fsspec's.

A content is there when it is whole: it is written beside its place, and moved there at the end. A
process that dies meanwhile leaves a `.part` behind, which `sweep` removes. All of this waits for the disk:
it is called in threads (`archive.py`).
"""

import inspect
import io
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol

PART: Final = ".part"
READ_BYTES: Final = 4 << 20
"""Asked of a storage at once."""
SENT: Final[Mapping[str, int]] = {"chunksize": 8 << 20, "max_concurrency": 2}
"""To a storage, where it can be said: what s3fs takes by itself is 50 MiB, ten of them at once."""
ABANDONED_SECONDS: Final = 3600
"""After which no process writes it any more: a client has five minutes for a body."""


class Blobs(Protocol):
    """Contract of what keeps contents. Each method may raise OSError."""

    def write(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A block: the content is there at its end, and none of it where it fails."""

    def read(self, name: str) -> BinaryIO:
        """Raise FileNotFoundError."""

    def remove(self, name: str) -> None:
        """Nothing, where it is not there."""

    def sweep(self) -> None:
        """Remove what was left half written."""


class LocalBlobs:
    """See `Blobs`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self._folder / f"{name}{PART}"
        try:
            with _new(part) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(self._folder / name)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def read(self, name: str) -> BinaryIO:
        return (self._folder / name).open("rb")

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        before = time.time() - ABANDONED_SECONDS
        for part in self._folder.glob(f"*{PART}"):
            if part.stat().st_mtime < before:
                part.unlink(missing_ok=True)


class RemoteBlobs:
    """Contents at a URL of fsspec's (s3://bucket/folder), each put there when it is whole.

    The folder is made where it is missing, and what it is in (a bucket) is not.

    Source: fsspec 2026.9, "API reference": url_to_fs, put_file, mkdir, open, rm_file; s3fs 2026.9, core.py, _put_file, _mkdir.
    """

    def __init__(self, url: str, folder: Path) -> None:
        """`folder`: of this host, for what is being written."""
        self._url = url
        self._here = LocalBlobs(folder)
        self._folder = folder
        self._opened: tuple[Any, str] | None = None

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self._folder / f"{name}{PART}"
        try:
            with _new(part) as file:
                yield file
            with _as_os_error():
                self._put(part, name)
        finally:
            part.unlink(missing_ok=True)

    def read(self, name: str) -> BinaryIO:
        with _as_os_error():
            files, root = self._files()
            # Its own readline knows no limit, and its own cache reads far more ahead.
            raw = files.open(f"{root}/{name}", "rb", block_size=READ_BYTES, cache_type="none")
            return io.BufferedReader(raw, READ_BYTES)

    def remove(self, name: str) -> None:
        with _as_os_error():
            files, root = self._files()
            with suppress(FileNotFoundError):
                files.rm_file(f"{root}/{name}")

    def sweep(self) -> None:
        self._here.sweep()

    def _put(self, part: Path, name: str) -> None:
        files, root = self._files()
        known = inspect.signature(getattr(files, "_put_file", files.put_file)).parameters
        sizes = {key: value for key, value in SENT.items() if key in known}
        try:
            files.put_file(str(part), f"{root}/{name}", **sizes)
        except FileNotFoundError:
            with suppress(FileExistsError):
                files.mkdir(root, create_parents=False)
            files.put_file(str(part), f"{root}/{name}", **sizes)

    def _files(self) -> tuple[Any, str]:
        if self._opened is None:
            import fsspec

            files, root = fsspec.core.url_to_fs(self._url)
            self._opened = files, str(root).rstrip("/")
        return self._opened


def _new(part: Path) -> BinaryIO:
    """For us alone from the first byte on. Never what is there already, which may be a link."""
    part.unlink(missing_ok=True)
    return os.fdopen(
        os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
    )


@contextmanager
def _as_os_error() -> Iterator[None]:
    """What a storage fails with, which each of fsspec's has words of its own for."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
