"""What engines publish of their KV caches, and what calls ask of it, put together.

call --> blocks_of --> tied to its tokens: at once if they are there, else by an engine
                       asked later
engines' events ------> the prefix index
"""

import asyncio
from collections.abc import Callable, Sequence

from pdgate.gateway.kv_events.books import KvEventBooks
from pdgate.gateway.kv_events.feeds import Feeds, Where
from pdgate.gateway.kv_events.prompts import is_text, of_token_ids, token_ids
from pdgate.gateway.kv_events.tokenizing import Tokenizing
from pdgate.gateway.kv_events.translation import Translation
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.protocols.call import Call
from pdgate.scheduling.instances import Instances
from pdgate.scheduling.prefix import BlocksOf, PrefixIndex, blocks_of


class Watch:
    """
    Attributes:
        index: Who has what cached; its blocks are made here.
        tokenizing: None where engines are not asked for the tokens of texts.
    """

    def __init__(
        self,
        index_of: Callable[[BlocksOf], PrefixIndex],
        where: Where,
        instances: Instances,
        access: EngineAccess,
        *,
        tokenize: bool = True,
    ) -> None:
        self.index = index_of(self.blocks_of)
        self.translation = Translation(self.index)
        self.feeds = Feeds(where, instances, self.translation, access)
        self.tokenizing = Tokenizing(self.translation, instances, access) if tokenize else None

    def blocks_of(self, call: Call) -> Sequence[int]:
        """The source of the index: the first time that a call comes by, its tokens are sought."""
        if call.blocks is not None:
            return call.blocks
        blocks = blocks_of(call)
        if blocks and not self.translation.links.knows(blocks):
            self._seek(call, blocks)
        return blocks

    @property
    def books(self) -> KvEventBooks:
        """For /metrics."""
        return KvEventBooks(self.feeds, self.translation, self.tokenizing)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as jobs:
            jobs.create_task(self.feeds.run())
            if self.tokenizing is not None:
                jobs.create_task(self.tokenizing.run())

    def _seek(self, call: Call, blocks: Sequence[int]) -> None:
        tokens = token_ids(call)
        if tokens is not None:
            # Before the call is sent anywhere, so that it goes to who has them.
            self.translation.learn(of_token_ids(call, blocks, tokens))
        elif self.tokenizing is not None and is_text(call):
            self.tokenizing.put(call, blocks)
