"""The process of a rank: python -m pdgate.engine.ranks.process ORDERS EVENTS

The arguments are the numbers of the sockets to the engine's process, and the first word is words.Start. It ends when the
engine does, however that goes: the kernel closes the pairs. An idle rank sees it by its orders, and one that
is held up by its beat.
"""

import contextlib
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final

from pdgate.cluster.stderr import log_to_stderr
from pdgate.engine.cache.memory import KvMemory, Mix, Slots, TokenRun
from pdgate.engine.connector import Connector, Core, Keep, Load
from pdgate.engine.hand_over.registry import connect
from pdgate.engine.hand_over.two_sided import ForReaders, TwoSided
from pdgate.engine.model.arrays import host
from pdgate.engine.model.attentions import Put
from pdgate.engine.model.weights import Floats
from pdgate.engine.peers import connector_settings, open_backend
from pdgate.engine.ranks.seats import own_layout
from pdgate.engine.ranks.words import (
    BEAT_SECONDS,
    RankAnswer,
    RankEvent,
    RankOrder,
    RankReady,
    Start,
    counts,
)
from pdgate.engine.tensors import open_tensors, putting, registered
from pdgate.transfer.messenger.counters import MessengerCounters
from pdgate.transfer.runtime.fleet import configured

PAGE_ORDERS: Final = ("write", "attend")
"""What a rank cannot fail at and go on: its pages would be wrong."""
OWN_ORDERS: Final = (*PAGE_ORDERS, "keep_for")
"""Methods of the desk; all others are the connector's."""

Gauges = Callable[[], Mapping[str, tuple[str, float]]]
"""As `Connector.gauges`."""

log = logging.getLogger(__name__)


class FarCore(Core):
    """The engine's core, seen from the rank: what a connector reports goes out as events."""

    def __init__(self, events: Connection) -> None:
        self.counters = MessengerCounters()
        self.gauges: Gauges = dict
        self._events = events
        self._lock = threading.Lock()

    def say(self, name: str, *words: Any) -> bool:
        """Return whether there is an engine to hear it; without one this process is about to end."""
        try:
            with self._lock:
                self._events.send(RankEvent(name, words, counts(self.counters)))
        except OSError:
            log.debug("%s came too late for the engine", name or "a sign of life")
            return False
        return True

    def loaded(self, request_id: str, error: str | None = None) -> None:
        self.say("loaded", request_id, error)

    def gave_up(self, request_id: str, error: str) -> None:
        self.say("gave_up", request_id, error)

    def release(self, request_id: str) -> None:
        self.say("release", request_id)

    def abort(self, request_id: str) -> None:
        self.say("abort", request_id)

    def sampled(self, request_id: str, token: int) -> None:
        self.say("sampled", request_id, token)

    def came_along(self, request_id: str, state: bytes) -> None:
        self.say("came_along", request_id, state)

    def submit_prefill(
        self,
        request_id: str,
        prompt: Sequence[int],
        tokens: int,
        keep: Keep,
        load: Load | None = None,
    ) -> None:
        if load is not None:
            raise ValueError("an engine of several ranks does not borrow prefixes")
        self.say("submit_prefill", request_id, tuple(prompt), tokens, keep)

    def beat(self) -> None:
        """Say that this process is alive; end it when the engine is gone, whatever it is held up by."""
        while self.say("gauges", dict(self.gauges())):
            threading.Event().wait(BEAT_SECONDS)
        os._exit(0)


class Desk:
    """Orders of the engine: those that take more than the connector are a method each."""

    def __init__(
        self, start: Start, core: FarCore, memory: KvMemory, connector: TwoSided, put: Put
    ) -> None:
        """`put`: brings what the engine's process sends to where this rank computes."""
        self._put = put
        self._core = core
        self._memory = memory
        self._connector = connector
        self._first_layer = start.place.layers.start

    def write(self, layer: int, slots: Slots, planes: Sequence[Floats]) -> None:
        self._memory.write(layer - self._first_layer, slots, [self._put(one) for one in planes])

    def attend(self, layer: int, queries: Floats, runs: Sequence[TokenRun], mix: Mix) -> Floats:
        return host(self._memory.attend(layer - self._first_layer, self._put(queries), runs, mix))

    def keep_for(self, request_id: str, readers: ForReaders) -> None:
        """Expect the reader of a prefill that the first rank was asked for."""
        try:
            self._connector.keep_for(request_id, readers.key, readers.readers)
        except ValueError as error:
            log.warning("prefill %s is of no use here: %s", request_id, error)
            self._core.abort(request_id)

    def obey(self, order: RankOrder) -> RankAnswer:
        method = getattr(self if order.name in OWN_ORDERS else self._connector, order.name)
        if order.name in PAGE_ORDERS:
            return RankAnswer(method(*order.words))
        try:
            return RankAnswer(method(*order.words))
        except ValueError as error:
            return RankAnswer(refused=str(error) or repr(error))
        # It costs the request that it is about and no other, as engine/hooks.py has it.
        except Exception as error:
            log.exception("the connector failed at %s", order.name)
            return RankAnswer(broken=f"{type(error).__name__}: {error}")


def open_desk(start: Start, core: FarCore) -> tuple[Desk, RankReady]:
    """Raises what the start of an engine raises."""
    settings, layout = start.settings, start.layout
    # Its own name among peers, as each worker of an engine has; the secret comes by the same files.
    identity = configured(settings.kv_secret_file, settings.kv_tls)
    backend = open_backend(settings, identity)
    own = own_layout(layout, start.place)
    tensors = open_tensors(settings.device, settings.threads)
    kv = registered(own, backend, tensors)
    connector: Connector = connect(
        settings.protocol,
        core=core,
        layout=layout,
        regions=kv.regions,
        backend=backend,
        settings=connector_settings(
            settings,
            start.api_port,
            start.model_root,
            identity,
            state_bytes=start.state_bytes,
            ranks=(start.place.number,),
            kv_port=start.kv_port,
            engine_id=start.engine_id,
            tell_ranks=partial(core.say, "tell_ranks"),
            moment=kv.moment,
        ),
    )
    assert isinstance(connector, TwoSided), "the engine has asked for nothing else"
    core.counters = connector.counters
    core.gauges = connector.gauges
    ready = RankReady(connector.worker, connector.kv_address, connector.server_info())
    return Desk(start, core, kv.memory, connector, putting(tensors)), ready


def reply(orders: Connection, answer: RankAnswer) -> None:
    """Say it, unless the engine has hung up: the next order does not come then."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        orders.send(answer)


def serve(orders: Connection, core: FarCore) -> None:
    """Return when the engine is gone."""
    start = orders.recv()
    log_to_stderr(start.settings.log_level)
    threading.Thread(target=core.beat, name="rank-beat", daemon=True).start()
    try:
        desk, ready = open_desk(start, core)
    except (OSError, ValueError, LookupError, TypeError, MemoryError) as error:
        reply(orders, RankAnswer(refused=str(error) or repr(error)))
        return
    reply(orders, RankAnswer(ready))
    while True:
        try:
            order = orders.recv()
        except (EOFError, OSError):
            return
        answer = desk.obey(order)
        if order.answers:
            reply(orders, answer)


def main() -> None:
    orders, events = (Connection(int(number)) for number in sys.argv[1:])
    code = 0
    try:
        serve(orders, FarCore(events))
    # Whatever it is, it must not keep us here; the engine sees that we are gone.
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 1
    # At once, whatever the threads do: no peer may be served for an engine that is gone.
    os._exit(code)


if __name__ == "__main__":
    main()
