"""Which part of the gateway a line of code works for. Pure.

Code of libraries works for whom calls it: the innermost frame that belongs to a part decides.
"""

from types import FrameType
from typing import Final

HARNESS: Final = "harness"
"""The wire in memory, and what drives it."""

FRONT, INTAKE, PROTOCOLS, SCHEDULING, FORWARDERS, UPSTREAM, BOOKS = (
    "front end and parser", "intake, keys, admission", "bodies and protocols", "scheduling",
    "forwarders", "upstream and deadlines", "metrics",
)  # fmt: skip
PARTS: Final = (FRONT, INTAKE, PROTOCOLS, SCHEDULING, FORWARDERS, UPSTREAM, BOOKS)

_OF_MODULES: Final = (
    ("benchmarks.", HARNESS),
    ("__main__", HARNESS),
    ("uvicorn.", FRONT),
    ("pdgate.gateway.front", FRONT),
    ("pdgate.gateway.metrics", BOOKS),
    ("pdgate.gateway.debug", BOOKS),
    ("pdgate.gateway.upstream", UPSTREAM),
    ("pdgate.gateway.deadlines", UPSTREAM),
    ("pdgate.gateway.", INTAKE),
    ("pdgate.protocols.", PROTOCOLS),
    ("pdgate.scheduling.", SCHEDULING),
    ("pdgate.forwarders.", FORWARDERS),
)
"""The first one that a module's name begins with."""


def part_of(frame: FrameType | None) -> str:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        for begins, part in _OF_MODULES:
            if module.startswith(begins):
                return part
        frame = frame.f_back
    return HARNESS
