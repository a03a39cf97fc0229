"""What the benchmark has to know of a gateway."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

KEY = "pdg-benchmark"
"""The API key that all clients send to all gateways; ours alone asks for it."""

MODEL = "mock"


class NotInstalled(Exception):
    """It cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gateway runs.

    Attributes:
        folder: Its own: what was installed, and what it writes.
        port: To listen on.
        spare_port: For what else it insists on serving.
        prefill, decode: URLs of the engines.
    """

    folder: Path
    port: int
    spare_port: int
    prefill: str
    decode: str


@dataclass(frozen=True, slots=True)
class Target:
    """
    Attributes:
        what: For the table: its version and how it is used.
        hops: 2 if it asks prefill and then decode, 1 if it only relays to decode.
        install: Into the folder; raises NotInstalled. A second time it finds all done.
        command: How it is started.
        environment: Variables over ours.
    """

    name: str
    what: str
    hops: int
    install: Callable[[Path], None]
    command: Callable[[Place], Sequence[str]]
    environment: tuple[tuple[str, str], ...] = ()


def folder_of(target: Target, cache: Path) -> Path:
    """Another one as soon as it is used in another way."""
    mark = hashlib.sha256(target.what.encode()).hexdigest()[:8]
    return cache / f"{target.name}-{mark}"
