"""A load from several workers of P: a conversation with each at the same time, a thread each."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from pdgate.transfer.messenger.context import NOTHING
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.interrupt import Interrupt
from pdgate.transfer.messenger.source import Moved, Source
from pdgate.transfer.messenger.workers import HeldElsewhere, MessengerWorker

Adrift = Callable[[HandOverError], None]
Take = Callable[[Source, Interrupt, Adrift], Moved]
"""A conversation. When it returns or raises, nothing of it can land any more."""


def source_at(worker: MessengerWorker, source: Source, said: HeldElsewhere) -> Source:
    """What this worker holds of it. The prompt is on its way already."""
    return replace(
        source,
        host=worker.host,
        port=worker.port,
        engine_id=said.engine_id,
        peer=worker.peer,
        bootstrap=False,
        prompt=(),
        lent=None,
        ranks=worker.ranks,
    )


def take_from_each(
    sources: Sequence[Source], take: Take, interrupt: Interrupt, adrift: Adrift
) -> Moved:
    """What came from all of them. When it returns or raises, no byte can land any more.

    The first that fails cancels the others, and its error is raised.
    """
    interrupts = [Interrupt() for _ in sources]
    lock = threading.Lock()
    moved: list[Moved] = []
    errors: list[Exception] = []
    told = False

    def stop() -> None:
        for one in interrupts:
            one.fire()

    def adrift_once(error: HandOverError) -> None:
        nonlocal told
        with lock:
            first, told = not told, True
        if first:
            adrift(error)

    def run(source: Source, its: Interrupt) -> None:
        try:
            came = take(source, its, adrift_once)
        # Raised again below, on the thread of the load.
        except Exception as error:  # noqa: BLE001
            with lock:
                errors.append(error)
            stop()
            return
        with lock:
            moved.append(came)

    interrupt.arm(stop)
    threads: list[threading.Thread] = []
    try:
        for source, its in zip(sources[1:], interrupts[1:], strict=True):
            thread = threading.Thread(target=run, args=(source, its), name="pdgate-load")
            thread.daemon = True
            thread.start()
            threads.append(thread)
        run(sources[0], interrupts[0])
    except RuntimeError as error:
        # There was no room for a thread.
        errors.append(error)
        stop()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    context = next((one.context for one in moved if one.context != NOTHING), NOTHING)
    return Moved(sum(one.bytes for one in moved), context)
