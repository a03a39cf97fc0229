"""KV events of engines and the prompts of calls, put together.

call --> blocks_of --> tied to its tokens: at once if they are there, else by an engine
                       asked later, or by the one that has read it (forwarders/token_ids.py)
engines' events ------> the prefix index
"""

from collections.abc import Callable, Iterator, Sequence

from pdgate.cluster.jobs import Run
from pdgate.gateway.kv_events.prompts import (
    answered_ids,
    is_text,
    of_text,
    of_token_ids,
    token_ids,
)
from pdgate.gateway.kv_events.subscriptions import HeardPublisher, Subscriptions, Where
from pdgate.gateway.kv_events.tokenizing import Tokenizing
from pdgate.gateway.kv_events.translation import EventTranslation
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.protocols.call import Call, Json
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.prefix import BlocksOf, PrefixIndex, blocks_of


class EventWatch:
    """
    Attributes:
        index: Who has what cached; its blocks are made here.
        tokenizing: None where engines are not asked for the tokens of texts.
    """

    def __init__(
        self,
        index_of: Callable[[BlocksOf], PrefixIndex],
        where: Where,
        endpoints: Endpoints,
        access: EngineAccess,
        *,
        tokenize: bool = True,
    ) -> None:
        self.index = index_of(self.blocks_of)
        self.translation = EventTranslation(self.index)
        self.subscriptions = Subscriptions(where, endpoints, self.translation, access)
        self.index.forgot.append(self.subscriptions.forgotten)
        self.tokenizing = Tokenizing(self.translation, endpoints, access) if tokenize else None

    def blocks_of(self, call: Call) -> Sequence[int]:
        """The source of the index: the first time that a call comes by, its tokens are sought."""
        if call.blocks is not None:
            return call.blocks
        blocks = blocks_of(call)
        if blocks and not self.translation.links.knows(blocks):
            self._seek(call, blocks)
        return blocks

    def read(self, call: Call, reply: Json) -> None:
        """A prefill engine has read the chat, and may have said which tokens it is: none need be asked then."""
        blocks = call.blocks
        if blocks and not self.translation.links.knows(blocks) and is_text(call):
            tokens = answered_ids(reply)
            if tokens is not None:
                self.translation.learn(of_text(call, blocks, tokens))

    def collect(self) -> Iterator[Samples]:
        """Samples for /metrics."""
        engines = self.subscriptions.engines.items()
        heard = [
            ((name, str(rank)), one, self.translation.cached(name, rank))
            for name, engine in engines
            for rank, one in engine.heard.items()
        ]
        yield families.KV_EVENT_BLOCKS.samples(
            ((*key, event), count)
            for key, one, _ in heard
            for event, count in (("stored", one.seen.stored), ("removed", one.seen.removed))
        )
        yield families.KV_EVENT_TROUBLES.samples(
            ((*key, kind), count)
            for key, one, cached in heard
            for kind, count in (
                *_troubles(one),
                ("orphan", sum(at.orphans for at in (cached.pages, *cached.beyond.values()))),
                ("overflow", sum(at.overflowed for at in (cached.pages, *cached.beyond.values()))),
            )
        )
        yield families.KV_EVENT_REPLAYS.samples(
            (key, one.feed.counts.replays) for key, one, _ in heard
        )
        yield families.KV_EVENT_LAG_SECONDS.samples((key, one.lag_seconds) for key, one, _ in heard)
        yield families.KV_EVENT_CONNECTED.samples(
            (name, bool(engine.heard) and all(one.feed.connected for one in engine.heard.values()))
            for name, engine in engines
        )
        yield families.KV_EVENT_CACHED_BLOCKS.samples(
            (key, len(cached.pages)) for key, _, cached in heard
        )
        yield families.KV_EVENT_TIER_BLOCKS.samples(
            ((*key, tier), len(at))
            for key, _, cached in heard
            for tier, at in cached.beyond.items()
        )
        yield families.KV_EVENT_LINKS.sample(len(self.translation.links))
        if self.tokenizing is not None:
            asked = self.tokenizing.asked
            outcomes = (
                ("told", asked.answered),
                ("failed", asked.failed),
                ("given_up", asked.given_up),
            )
            yield families.TOKENIZED_PROMPTS.samples(outcomes)

    @property
    def jobs(self) -> dict[str, Run]:
        """Name -> what goes on as long as the gateway does."""
        jobs: dict[str, Run] = {"kv-events": self.subscriptions.run}
        if self.tokenizing is not None:
            jobs["kv-tokenizing"] = self.tokenizing.run
        return jobs

    def _seek(self, call: Call, blocks: Sequence[int]) -> None:
        tokens = token_ids(call)
        if tokens is not None:
            # Before the call is sent anywhere, so that it goes to who has them.
            self.translation.learn(of_token_ids(call, blocks, tokens))
        elif self.tokenizing is not None and is_text(call):
            self.tokenizing.put(call, blocks)


def _troubles(heard: HeardPublisher) -> Iterator[tuple[str, int]]:
    counts = heard.feed.counts
    yield "gap", counts.gaps
    yield "resync", counts.resyncs
    yield "restart", counts.restarts
    yield "cleared", heard.seen.cleared
    yield "malformed", heard.seen.malformed + heard.feed.malformed
