"""Ids of calls: what a client may choose, and what we make.

A client may name its call (x-request-id) to find it in its logs. The engines never see
that name alone: two calls of one name would meet in one engine, and some protocols read
addresses out of ids, so a name that carries one is refused (`carries_address`).
"""

import os
import re
from itertools import count

MAX_LENGTH = 128

_ALLOWED = re.compile(r"[A-Za-z0-9._:@/+=~-]+")
_ADDRESS = re.compile(r"_(\[[0-9a-fA-F:]+\]|[^_:\s]+):\d{1,5}|_addr_|://")

_process = ""
_number = count(1)


def _name_process() -> None:
    global _process
    _process = os.urandom(6).hex()


_name_process()
# A forked worker would go on counting where its siblings do; ids are transfer ids too,
# and a reused one gives wrong tokens.
os.register_at_fork(after_in_child=_name_process)


def new() -> str:
    """Unique across processes and restarts, and cheap: random once, then counted."""
    return "%s%08x" % (_process, next(_number))  # noqa: UP031 (a third of the time of an f-string)


def attempt(call_id: str) -> str:
    """What engines see: unique even if the client reuses its id."""
    return call_id + "-" + new()


def usable(name: str) -> bool:
    return len(name) <= MAX_LENGTH and _ALLOWED.fullmatch(name) is not None


def carries_address(name: str) -> bool:
    """Whether an engine could read a dial target out of this id (Neuron, MoRIIO)."""
    return _ADDRESS.search(name) is not None
