"""A process that gets no file descriptor any more, for a while; those that it has, it keeps."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

STANDARD_STREAMS = 3


@contextmanager
def no_descriptor_left(pid: int = 0) -> Iterator[None]:
    """Whatever it opens in this block fails with EMFILE; 0 is this process."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (STANDARD_STREAMS, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
