"""Request ids: what a client may choose, and what we make.

A client may name its call (x-request-id) to find it in its logs. The engines never see
that name alone: two calls of one name would meet in one engine, and some protocols read
addresses out of ids, so a name that carries one is refused (`carries_address`).
"""

import os
import re
from collections.abc import Callable
from itertools import chain

MAX_LENGTH = 128
ID_BYTES = 16
AHEAD = 256
"""Ids that are made at once: a system call for each would cost more than all else about it."""

_ALLOWED = re.compile(r"[A-Za-z0-9._:@/+=~-]+")
# In brackets also IPv4-mapped ones, which have dots.
_ADDRESS = re.compile(r"_(\[[^\[\]_\s]+\]|[^_:\s]+):\d{1,5}|_addr_|://")


def _some() -> list[str]:
    made = os.urandom(ID_BYTES * AHEAD).hex()
    width = 2 * ID_BYTES
    return [made[at : at + width] for at in range(0, len(made), width)]


def _ids() -> Callable[[], str]:
    return chain.from_iterable(iter(_some, [])).__next__


new: Callable[[], str] = _ids()
"""Makes an id of 128 random bits: KV is handed over by such an id, so knowing one must not tell another.

No function of Python for each of them.
"""


def _none_ahead() -> None:
    global new
    new = _ids()


# A forked worker would take the ids that its siblings take; ids are transfer ids too, and a
# reused one gives wrong tokens.
os.register_at_fork(after_in_child=_none_ahead)


def attempt(call_id: str) -> str:
    """What engines see: unique even if the client reuses its id."""
    return call_id + "-" + new()


def usable(name: str) -> bool:
    return len(name) <= MAX_LENGTH and _ALLOWED.fullmatch(name) is not None


def carries_address(name: str) -> bool:
    """Whether an engine could read a dial target out of this id (Neuron, MoRIIO)."""
    return _ADDRESS.search(name) is not None
