"""A directory in a file, or in all files of a folder: TOML or JSON, by their suffix.

    ["/workers/prefill/10.0.0.1/8100"]
    protocol = "vllm-nixl"
    kv = "10.0.0.1:5600"

    {"/workers/decode/10.0.0.2/8200": {"protocol": "vllm-nixl"}}

Keys and values are those of every other store (member.py). A writer of the file should
write another one and rename it. A file that is half written, or no longer well formed, is
refused and counts as what it said last, so a slip of the editor takes no engine away.

Files are looked at every second and read when their time or size has changed: watching
(inotify) does not hear of changes on network file systems, nor behind the links that
Kubernetes exchanges when it updates a mounted ConfigMap.
"""

import asyncio
import errno
import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pdgate.cluster import regular
from pdgate.cluster.polled import Polled, Seen, Unseen

SUFFIXES: Final = (".toml", ".json")
MAX_BYTES: Final = 16 << 20
EVERY_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class _FileSaid:
    """
    Attributes:
        stamp: Which version of the file it was: time, size and inode.
        entries: Of the last version that could be read.
        why_not: Empty if that is the current one.
    """

    stamp: tuple[int, int, int]
    entries: dict[str, bytes]
    why_not: str = ""


class File(Polled):
    def __init__(self, *, path: str, every_seconds: float = EVERY_SECONDS) -> None:
        """Of a file that may be written later. Raises ValueError."""
        super().__init__(every_seconds)
        if not path:
            raise ValueError("the path of the file or folder is missing")
        self._path = Path(path)
        self._said: dict[Path, _FileSaid] = {}

    async def look(self) -> Seen:
        # A network file system may keep us waiting.
        return await asyncio.to_thread(self._look)

    def _look(self) -> Seen:
        try:
            paths = self._paths()
            self._said = {path: _read(path, self._said.get(path)) for path in paths}
        except OSError as error:
            raise Unseen(f"{self._path}: {error.strerror}") from None
        entries: dict[str, bytes] = {}
        for said in self._said.values():
            for key, value in said.entries.items():
                # What is said last stands last.
                entries.pop(key, None)
                entries[key] = value
        refused = {str(path): said.why_not for path, said in self._said.items() if said.why_not}
        return Seen(entries, refused)

    def _paths(self) -> list[Path]:
        """Raises OSError."""
        if not self._path.is_dir():
            return [self._path]
        return sorted(
            path
            for path in self._path.iterdir()
            # Those of editors and of Kubernetes' links begin with a dot.
            if path.suffix in SUFFIXES and not path.name.startswith(".")
        )


def _read(path: Path, before: _FileSaid | None) -> _FileSaid:
    """Raises OSError."""
    stat = path.stat()
    stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
    if before is not None and before.stamp == stamp:
        return before
    last = before.entries if before else {}
    try:
        return _FileSaid(stamp, parsed(path.suffix, regular.read(path, MAX_BYTES)))
    except OSError as error:
        if error.errno not in (errno.EFBIG, errno.EINVAL):
            raise
        return _FileSaid(stamp, last, str(error.strerror))
    except ValueError as error:
        return _FileSaid(stamp, last, str(error))


def parsed(suffix: str, data: bytes) -> dict[str, bytes]:
    """Key -> value. Raises ValueError for what is no table of tables."""
    kind = "TOML" if suffix == ".toml" else "JSON"
    try:
        said: Any = tomllib.loads(data.decode()) if kind == "TOML" else json.loads(data)
    # Deep nesting exhausts the parsers' stack.
    except (ValueError, RecursionError):
        raise ValueError(f"it is not valid {kind}") from None
    match said:
        case dict():
            # TOML has dates, which no field takes; as text they are refused by the field's name.
            return {key: json.dumps(value, default=str).encode() for key, value in said.items()}
        case _:
            raise ValueError("it is no table of entries")
