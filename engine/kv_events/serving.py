"""The publisher of an engine process, where its settings ask for one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pdgate.engine.kv_events.journal import Journal
from pdgate.engine.settings import Settings

if TYPE_CHECKING:
    from pdgate.engine.kv_events.publisher import Publisher


@contextmanager
def publishing(settings: Settings) -> "Iterator[Publisher | None]":
    """It listens inside the block. Raises OSError."""
    if settings.kv_events_port is None:
        yield None
        return
    # An engine alone needs no ZeroMQ.
    from pdgate.engine.kv_events.publisher import Publisher

    host = f"[{settings.kv_host}]" if ":" in settings.kv_host else settings.kv_host or "*"
    publisher = Publisher(
        f"tcp://{host}:{settings.kv_events_port}", f"tcp://{host}:{settings.kv_events_replay_port}"
    )
    try:
        yield publisher
    finally:
        publisher.close()


def journal_of(publisher: "Publisher | None", block_tokens: int) -> Journal | None:
    return None if publisher is None else Journal(block_tokens, publisher.publish)
