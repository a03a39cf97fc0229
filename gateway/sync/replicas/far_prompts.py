"""Prompts and where they were sent: ours for the replicas, theirs for the prefix index.

    the index is taught --> ours --> the stream          ten times a second
    the index <-- take in <-- the stream                 as often

A conversation's next call may reach any replica; without this, each would know only its own share of them. Nothing
of it exists before a policy asks what engines have cached. A call never waits for it: what cannot be told, as
Redis is away or too much is sent, is dropped and counted, and costs the others a hit. Who begins hears first what the
stream still has.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from pdgate.cluster.complaint import Complaint
from pdgate.cluster.directory import StoreAway
from pdgate.cluster.jobs import is_cancelled
from pdgate.gateway.sync.replicas.base import ReplicaStream
from pdgate.gateway.sync.replicas.entry import name_of
from pdgate.gateway.sync.replicas.prompts import BadPrompts, PromptBatch, Sent, decode, encode, sent
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.prefix.index import PrefixIndex

log = logging.getLogger(__name__)

TELL_SECONDS: Final = 0.1
AWAY_SECONDS: Final = 0.25

MOST_BYTES: Final = 64 << 10
"""Hashes that are sent at a time: some 30 prompts of 128 KB, or hundreds of shorter ones."""


TURN_BYTES: Final = 64 << 10
"""That are learnt in one turn of the event loop: 10 ms."""
PROMPT_BYTES: Final = 64
"""That a prompt of no blocks counts for."""


class FarPrompts:
    """
    Attributes:
        told, heard: Prompts.
        dropped: Prompts that could not be told.
        refused: Batches of which nothing could be used.
    """

    def __init__(
        self, index: PrefixIndex, endpoints: Endpoints, gateway: str, stream: ReplicaStream
    ) -> None:
        """`gateway`: the same for all workers of one, who tell each other by memory."""
        self.told = self.heard = self.dropped = self.refused = 0
        self._index = index
        self._endpoints = endpoints
        self._gateway = gateway
        self._stream = stream
        self._joined = asyncio.Event()
        self._ours: list[Sent] = []
        self._bytes = 0
        self._complaint = Complaint(log, "replicas cannot tell each other which prompts went where")

    def around(
        self, load: Callable[[str, PolicyContext], Policy]
    ) -> Callable[[str, PolicyContext], Policy]:
        """The same policies; with the first that asks what is cached, it begins."""

        def loaded(name: str, context: PolicyContext) -> Policy:
            policy = load(name, context)
            if policy.needs_prefixes and not self._joined.is_set():
                self._joined.set()
                self._index.told.append(self._tell)
            return policy

        return loaded

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            await self._joined.wait()
            while not is_cancelled():
                seconds = await self.once()
                await asyncio.sleep(seconds)
        finally:
            await self._stream.close()

    async def once(self) -> float:
        """Seconds until the next time."""
        ours, self._ours, self._bytes = self._ours, [], 0
        try:
            news = await self._stream.exchange(encode(self._gateway, ours) if ours else None)
        except StoreAway as away:
            self.dropped += len(ours)
            self._complaint.about(str(away))
            return AWAY_SECONDS
        self._complaint.over()
        self.told += len(ours)
        await self._take_in(news)
        return TELL_SECONDS

    def _tell(self, instance_id: str, blocks: Sequence[int], kept: int | None) -> None:
        endpoint = self._endpoints.get(instance_id)
        size = len(blocks) * 8
        if endpoint is None or self._bytes + size > MOST_BYTES:
            self.dropped += 1
            return
        self._bytes += size
        self._ours.append(sent(name_of(endpoint.instance), blocks, kept))

    async def _take_in(self, news: Sequence[bytes]) -> None:
        """With turns for calls in between: that of a busy fleet, or of a stranger, takes its time."""
        if not news:
            return
        ids = {name_of(one.instance): one.instance.id for one in self._endpoints}
        for data in news:
            try:
                batch = decode(data)
                if batch.gateway != self._gateway:
                    await self._learn(batch, ids)
            except BadPrompts as error:
                self.refused += 1
                if self.refused == 1:
                    log.warning("what a replica tells of its prompts is ignored: %s", error)
            await asyncio.sleep(0)

    async def _learn(self, batch: PromptBatch, ids: dict[str, str]) -> None:
        """Raises BadPrompts."""
        done = 0
        for one in batch.sent:
            done += PROMPT_BYTES + len(one.blocks)
            if done > TURN_BYTES:
                done = 0
                await asyncio.sleep(0)
            instance_id, hashes = ids.get(one.engine), one.hashes()
            # One that this replica does not know, or no longer.
            if instance_id is not None:
                self.heard += 1
                self._index.hear(instance_id, hashes, one.kept)
