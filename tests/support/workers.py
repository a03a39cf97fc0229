"""The worker processes of a running gateway, each of which can be asked by itself.

A new connection goes to any of them, and often to the same one many times in a row: what one
answers, however often, says nothing of the others.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.freezing import freeze, thaw
from tests.support.processes import Child
from tests.support.waiting import until


def workers_of(gateway: Child) -> list[int]:
    """Their process ids: children that serve, and not multiprocessing's own helper."""
    pid = gateway.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in children if b"spawn_main" in _command(each)]


@contextmanager
def only(worker: int, gateway: Child) -> Iterator[None]:
    """The others cannot accept anything meanwhile."""
    others = [each for each in workers_of(gateway) if each != worker]
    for each in others:
        freeze(each)
    try:
        yield
    finally:
        for each in others:
            thaw(each)


async def all_say(gateway: Child, question: Callable[[], Awaitable[bool]], what: str) -> None:
    """Until each worker has said so. `question` makes a connection of its own.

    One that has ended meanwhile is not waited for: the others would be frozen for as long.
    """
    workers = workers_of(gateway)
    for worker in workers or [gateway.pid]:

        async def asked(worker: int = worker) -> bool:
            if workers and worker not in workers_of(gateway):
                return True
            with only(worker, gateway):
                return await question()

        await until(asked, f"{what} of worker {worker}")


async def idle_ones_end(gateway: Child) -> None:
    """Until a drain has left the one worker that still has a call."""
    await until(lambda: len(workers_of(gateway)) <= 1, "the end of workers without a call")


def _command(pid: str) -> bytes:
    """Empty for one that has ended since it was listed."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
