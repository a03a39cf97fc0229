"""Prompts that the other workers have sent, and to which engines, for the prefix index of this one.

    the index is taught --> ours --> our ring
    policy <-- the index <-- take_in <-- others' rings      before each choice

A conversation's calls reach whichever worker is free; without this, each would know only its own
share of them. A message is [engine, how much of it stands, block, block, ...]: 2 KB for a prompt of
128 KB, which takes the writer a few microseconds and each other worker what an update takes. Nothing
of it exists before a policy asks what engines have cached.
"""

import asyncio
import logging
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from pdgate.gateway.sync.workers.folder import Folder
from pdgate.gateway.sync.workers.policy import LooksAround
from pdgate.gateway.sync.workers.ring import RING_BYTES, Ring, RingReader
from pdgate.gateway.sync.workers.table import key_of
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.prefix.index import PrefixIndex

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.1
KIND: Final = "prompts"
INSTANCE: Final = "instance"

_WORD: Final = (1 << 64) - 1
_ALL: Final = _WORD
"""Of the prompt stands; else so many blocks."""


class SharedPrefixes:
    def __init__(self, folder: Path, endpoints: Endpoints, index: PrefixIndex) -> None:
        self._where = folder
        self._folder: Folder | None = None
        self._joined = asyncio.Event()
        self._endpoints = endpoints
        self._index = index
        self._readers: dict[str, RingReader] = {}
        self._keys: dict[str, int] = {}
        self._ids: dict[int, str] = {}

    def around(
        self, load: Callable[[str, PolicyContext], Policy]
    ) -> Callable[[str, PolicyContext], Policy]:
        """The same policies; those that ask what is cached hear of the others first."""

        def loaded(name: str, context: PolicyContext) -> Policy:
            policy = load(name, context)
            if not policy.needs_prefixes:
                return policy
            self._join()
            return LooksAround(policy, self.take_in)

        return loaded

    def _join(self) -> None:
        """From now on we tell, and hear of what is sent from now on."""
        if self._joined.is_set():
            return
        try:
            self._folder = Folder(self._where, KIND, RING_BYTES)
        except OSError as error:
            log.warning("workers cannot tell each other which prompts went where: %s", error)
            return
        self._joined.set()
        self._ring = Ring(self._folder.memory)
        self._index.told.append(self._tell)
        self.look()

    def _tell(self, instance_id: str, blocks: Sequence[int], kept: int | None) -> None:
        message = array("Q", (self._key(instance_id), _ALL if kept is None else kept))
        message.extend(blocks)
        self._ring.write(message)

    def take_in(self) -> None:
        for reader in self._readers.values():
            for message in reader.news():
                instance_id = self._ids.get(message[0])
                # One that this worker does not know, or no longer.
                if instance_id is None or self._endpoints.get(instance_id) is None:
                    continue
                kept = message[1]
                self._index.hear(instance_id, message[2:], None if kept == _ALL else kept)

    def look(self) -> None:
        """Which workers and engines are there now."""
        if self._folder is None:
            return
        known = {endpoint.instance.id for endpoint in self._endpoints}
        if known != self._keys.keys():
            self._keys = {name: key_of(INSTANCE, name) & _WORD for name in known}
            self._ids = {key: name for name, key in self._keys.items()}
        others = self._folder.others()
        for name in self._readers.keys() - others.keys():
            del self._readers[name]
        for name, memory in others.items():
            if name not in self._readers:
                self._readers[name] = RingReader(memory)
        self.take_in()

    async def run(self) -> None:
        """Run until cancelled; `close` is for the end of the process."""
        await self._joined.wait()
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def close(self) -> None:
        """The others hear no more of us, nor we of them."""
        self._readers.clear()
        if self._folder is not None:
            self._index.told.remove(self._tell)
            self._folder.close()
            self._folder = None

    def _key(self, instance_id: str) -> int:
        key = self._keys.get(instance_id)
        return key_of(INSTANCE, instance_id) & _WORD if key is None else key
