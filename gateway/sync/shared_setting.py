"""Settings that operators change while the gateway runs: as configured, until one is put.

    PUT --> store --> in force here at once, elsewhere at the next look
                '---> looked at every LOOK_SECONDS by every process that shares it

What is pinned already when a process starts counts for it too: it was said after the
configuration was written. Without a store a process is on its own.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from pdgate.cluster.complaint import Complaint
from pdgate.cluster.directory import StoreAway
from pdgate.cluster.jobs import is_cancelled
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.sync.shared_store import NotShared, SharedStore, StoreState

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0

S = TypeVar("S", bound=BaseModel)


class SharedSetting(Generic[S]):
    """
    Attributes:
        section: What is in force.
        shared: Whether other processes hear of it.
        reachable: Whether the store answered the last look, once it did; None until then.
    """

    def __init__(
        self,
        section: S,
        apply: Callable[[S], None],
        store: SharedStore | None = None,
        look_seconds: float = LOOK_SECONDS,
        *,
        name: str = "thresholds",
    ) -> None:
        """`apply` has been done for `section` already; `name` is for the log."""
        self.section = section
        self._apply = apply
        self._store = store
        self._look_seconds = look_seconds
        self._name = name
        self._said = False
        self._complaint = Complaint(
            log,
            f"the {name} that are shared cannot be read",
            f"the {name} that are shared can be read again",
        )
        self.reachable: bool | None = None

    @property
    def shared(self) -> bool:
        return self._store is not None

    def configure(self, section: S) -> None:
        """The configuration says this now; what an operator has said while we ran goes before."""
        if not self._said:
            self._take(section)

    async def change(self, to: Callable[[S], S]) -> None:
        """Put as `put` does, but from what is pinned now, which another process may have said just before.

        Of two changes in the same few milliseconds the later one can undo the other. Raises NotShared.
        """
        before = self.section
        if self._store is not None:
            with self._asking():
                found = await self._store.read()
            if found is not None:
                # Nonsense is no reason not to say something better.
                with suppress(ValidationError):
                    before = self._parsed(found)
        await self.put(to(before))

    async def put(self, section: S) -> None:
        """Raises NotShared, and then nothing has changed here."""
        if self._store is not None:
            with self._asking():
                await self._store.pin(section.model_dump_json().encode())
        self._said = True
        self._take(section)

    async def follow(self) -> None:
        """Follow the store until cancelled; without one there is nothing to follow."""
        if self._store is None:
            return
        try:
            while not is_cancelled():
                await self._look(self._store)
                await asyncio.sleep(self._look_seconds)
        finally:
            await self._store.close()

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except StoreAway as error:
            log.warning("the %s were not changed: %s", self._name, error)
            raise NotShared("other processes cannot be told, so nothing was changed") from error

    async def _look(self, store: SharedStore) -> None:
        try:
            found = await store.read()
            self.reachable = True
            if found is not None:
                self._take(self._parsed(found))
                self._said = True
        except StoreAway as error:
            # Not since the start is another state than not any more.
            self.reachable = None if self.reachable is None else False
            self._complaint.about(str(error))
        except ValidationError as error:
            self._complaint.about(str(error))
        else:
            self._complaint.over()

    def _parsed(self, found: bytes) -> S:
        """Raises ValidationError."""
        return type(self.section).model_validate_json(found, strict=True)

    def _take(self, section: S) -> None:
        if section != self.section:
            log.info("the %s from now on: %s", self._name, section)
            self.section = section
            self._apply(section)


class SharedStatus:
    """The Redis that replicas share, on /ready and /metrics.

    Until it has answered once, what was configured is in force; when it answers no more, what was
    last said is, and nothing new can be said.
    """

    def __init__(self, setting: SharedSetting[Any]) -> None:
        self._setting = setting

    def as_json(self) -> dict[str, str]:
        """State without a reason: /ready is for strangers, too, and reasons name addresses."""
        return {"state": self.state}

    @property
    def state(self) -> StoreState:
        match self._setting.reachable:
            case None:
                return StoreState.WAITING
            case True:
                return StoreState.CURRENT
        return StoreState.DEGRADED

    def collect(self) -> Iterator[Samples]:
        yield families.REDIS_DEGRADED.sample(self.state is not StoreState.CURRENT)
