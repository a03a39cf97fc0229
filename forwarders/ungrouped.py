"""A task group whose errors look like everybody else's."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ungrouped() -> Iterator[None]:
    """A task group wraps what went wrong; callers want the error itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The client left in the moment of the failure, and before Python 3.13 the
            # group forgets that.
            raise asyncio.CancelledError from None
        raise group.exceptions[0] from None
