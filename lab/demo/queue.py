"""Prefill queue for decode-first: one that is named, or a Redis of the demo's own.

Engines are processes, so what they share is a third one. Ours listens on loopback, keeps
nothing on disk and ends with the demo; engines wait for it, so no other part has to.
"""

import shutil
from importlib.util import find_spec

from pdgate.cluster.queue import settings
from pdgate.lab.processes import REDIS
from pdgate.protocols.extras import install

PROTOCOL = "decode-first"


def why_not(url: str) -> str:
    """What is missing for the queue at `url`, or for our own if that is empty; "" for nothing."""
    if url:
        try:
            chosen = settings.read(url)
        except ValueError as error:
            return f"--queue: {error}"
        if chosen.scheme not in settings.REDIS:
            return f"--queue {url}: engines are processes, which can share a Redis only"
    if find_spec("redis") is None:
        return f"{PROTOCOL} needs one more package: {install('redis')}"
    if not url and shutil.which(REDIS) is None:
        return (
            f"{PROTOCOL} needs a queue that engines share: install {REDIS}, "
            "or name a Redis with --queue redis://host:port/0"
        )
    return ""
