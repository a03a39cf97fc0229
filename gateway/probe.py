"""Prober of engines: are they well, which models do they serve, which engines are they now?

Each look is a visit (gateway/upstream/one_shot.py), on a connection of its own. What it finds goes to
scheduling's Instances; what operators should know goes to the log, once per change.

Each engine is watched by a task of its own, so that none waits for another's timeout: every
`interval_seconds` while it is well, every `retry_seconds` while it is not. An engine taken out by
what calls met is looked at `retry_seconds` later. Of those that are not well MOST_AT_ONCE are looked
at at a time: a directory may name thousands that are none.

An engine may be well and take no calls, as it sleeps (gateway/sleep_mode.py).

Mooncake's prefill engines change their engine id with every restart and decode hangs on
an old one, so their bootstrap server is asked in every round. Which generation an engine
speaks, if it is not configured, follows from what answers at the bootstrap address:

    a JSON of engine ids        d    (current vLLM)
    another HTTP answer         b    (a bootstrap server without /query)
    nothing, none configured    a    (serial, no bootstrap server)
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from pdgate.forwarders import registry
from pdgate.gateway import model_cards
from pdgate.gateway.security.engine_access import OPEN, EngineAccess
from pdgate.gateway.sleep_mode import SleepModes
from pdgate.gateway.upstream.one_shot import AskFailed, Gone, OneShotClient, Short
from pdgate.protocols.dialects import mooncake
from pdgate.protocols.errors import GatewayError
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.health.breaker import BreakerState

log = logging.getLogger(__name__)

MOONCAKE = "vllm-mooncake"
NAMES_ENGINES = ("c", "d")
MOST_AT_ONCE = 256
"""2,048 that say nothing are through in eight timeouts."""
MAX_REASON = 100
"""Characters."""
ASLEEP = "asleep or paused, so it gets no calls"
MOST_QUERY_BYTES = 256 << 10
"""Of what a bootstrap server says of its ranks."""


class NotWell(Exception):
    """The engine cannot take calls; the message says why, for operators."""


@dataclass(frozen=True, slots=True)
class ProbedEngine:
    """What one look at an engine found.

    Attributes:
        asleep: It is well, and takes no calls until an operator wakes it.
    """

    instance: Instance
    cards: Sequence[dict[str, Any]]
    asleep: bool = False

    @property
    def models(self) -> list[str]:
        return [card["id"] for card in self.cards]


class Silent:
    """No answer in time."""


class UnaskedProbe:
    """This host had no socket to ask with, so nothing is known."""


class Prober:
    """Looks at every instance again and again, inside its `run`.

    Attributes:
        interval_seconds, timeout_seconds, retry_seconds: Count from the next look on.
        cards: Instance id -> its entries of /v1/models, from its last good answer.
        on_adapters: Called with the names of the adapters (LoRA) that an instance serves, at each look.
        on_gone: Called with the id of an instance that accepts no connection, at each look.
        on_left: Called with the id of one that is in no directory any more.
        short: Looks that could not be made for want of a socket of ours.
    """

    def __init__(
        self,
        endpoints: Endpoints,
        interval_seconds: float,
        timeout_seconds: float,
        retry_seconds: float,
        access: EngineAccess = OPEN,
    ) -> None:
        self.cards: dict[str, Sequence[dict[str, Any]]] = {}
        self.short = 0
        self.on_adapters: Callable[[Collection[str]], None] = _nobody_listens
        self.on_gone: Callable[[str], None] = _nobody_listens
        self.on_left: Callable[[str], None] = _nobody_listens
        self.interval_seconds = interval_seconds
        self.timeout_seconds = timeout_seconds
        self.retry_seconds = retry_seconds
        self._endpoints = endpoints
        self._access = access
        self._sleep_modes = SleepModes()
        self._complaints: dict[str, str] = {}
        self._announced = {c.instance.id: c.instance for c in endpoints}
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._taken_out: dict[str, asyncio.Event] = {}
        self._somebody_is_new = asyncio.Event()
        self._slots = asyncio.Semaphore(MOST_AT_ONCE)
        self._not_looked_at: set[str] = set()
        self.first_round = asyncio.Event()
        """Set when every instance that was known when `run` began has been looked at once."""
        endpoints.on_out = self._hurry

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                self._not_looked_at = set(self._announced)
                self._looked_at("")
                while True:
                    self._somebody_is_new.clear()
                    for instance_id, announced in self._announced.items():
                        if instance_id not in self._watching:
                            watching = group.create_task(self._watch(announced))
                            self._watching[instance_id] = watching
                    await self._somebody_is_new.wait()
        finally:
            # Started anew, it has to watch all of them again.
            self._watching.clear()

    def known_cards(self) -> dict[str, dict[str, Any]]:
        """Model -> its card, of those that instances serve that may get calls."""
        cards: dict[str, dict[str, Any]] = {}
        for endpoint in self._endpoints:
            if endpoint.may_serve:
                for card in self.cards.get(endpoint.instance.id, ()):
                    cards.setdefault(card["id"], card)
        return cards

    def add(self, announced: Instance) -> None:
        """One more to look at, at once; or another record of one that is known."""
        self._end_watching(announced.id)
        self._sleep_modes.forget(announced.id)
        self._announced[announced.id] = announced
        self._somebody_is_new.set()

    def forget(self, instance_id: str) -> None:
        self._end_watching(instance_id)
        self._looked_at(instance_id)
        self._announced.pop(instance_id, None)
        self.cards.pop(instance_id, None)
        self._complaints.pop(instance_id, None)
        self._sleep_modes.forget(instance_id)
        self.on_left(instance_id)

    def look_again(self, instance_id: str) -> None:
        """Probe an instance at once, as its state has changed."""
        if instance_id in self._announced:
            self._end_watching(instance_id)
            self._sleep_modes.forget(instance_id)
            self._somebody_is_new.set()

    def _end_watching(self, instance_id: str) -> None:
        self._taken_out.pop(instance_id, None)
        if watching := self._watching.pop(instance_id, None):
            watching.cancel()

    def _hurry(self, instance_id: str) -> None:
        """Calls found it to be out."""
        self._sleep_modes.forget(instance_id)
        if taken_out := self._taken_out.get(instance_id):
            taken_out.set()

    def _looked_at(self, instance_id: str) -> None:
        self._not_looked_at.discard(instance_id)
        if not self._not_looked_at:
            self.first_round.set()

    async def _watch(self, announced: Instance) -> None:
        taken_out = self._taken_out[announced.id] = asyncio.Event()
        while True:
            try:
                if self._is_well(announced.id):
                    await self._look(announced)
                else:
                    async with self._slots:
                        await self._look(announced)
            # A bug of ours over one engine must not be the end of looking at the others.
            except Exception as error:
                if self._complain(announced.id, f"looking at it failed: {error!r}"):
                    log.exception("looking at %s failed", announced.id)
                self._endpoints.mark_silent(announced.id)
            self._looked_at(announced.id)
            taken_out.clear()
            if self._is_well(announced.id):
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.interval_seconds):
                        await taken_out.wait()
                if not taken_out.is_set():
                    continue
            await asyncio.sleep(min(self.retry_seconds, self.interval_seconds))

    def _is_well(self, instance_id: str) -> bool:
        endpoint = self._endpoints.get(instance_id)
        return (
            endpoint is not None and endpoint.up and endpoint.breaker.state is not BreakerState.OPEN
        )

    async def _look(self, announced: Instance) -> None:
        found = await self._seen(announced)
        instance_id = announced.id
        # Forgotten or replaced while we looked: then this says nothing of the one there now.
        if self._announced.get(instance_id) is not announced:
            return
        if isinstance(found, UnaskedProbe):
            self.short += 1
            self._complain(instance_id, "this host has no socket to ask it with")
            return
        if not isinstance(found, ProbedEngine):
            self._sleep_modes.forget(instance_id)
        if isinstance(found, Silent):
            self._complain(instance_id, f"no answer within {self.timeout_seconds:g} s")
            self._endpoints.mark_silent(instance_id)
            return
        if isinstance(found, str):
            self._complain(instance_id, found)
            self._endpoints.mark_down(instance_id)
            return
        if found.asleep:
            if self._complaints.get(instance_id) != ASLEEP:
                self._complaints[instance_id] = ASLEEP
                log.info("%s is %s", instance_id, ASLEEP)
            self._endpoints.mark_asleep(instance_id)
            return
        if self._complaints.pop(instance_id, None) is not None:
            log.info("%s is up", instance_id)
        self.cards[instance_id] = found.cards
        self._endpoints.put(found.instance)
        cards = found.cards
        # Before any call of theirs may come.
        self.on_adapters(model_cards.parents(cards))
        self._endpoints.mark_up(
            instance_id, found.models, model_cards.lengths(cards), strict=model_cards.strict(cards)
        )

    async def _seen(self, announced: Instance) -> ProbedEngine | Silent | UnaskedProbe | str:
        """What was found, or why the engine is not well."""
        try:
            # For the whole look: byte by byte, an engine could hold up all engines' probes.
            async with asyncio.timeout(self.timeout_seconds):
                patience = self.timeout_seconds / 2
                return await look(self._access, announced, self._sleep_modes, patience)
        except TimeoutError:
            return Silent()
        except Short:
            return UnaskedProbe()
        except (NotWell, AskFailed) as why:
            if isinstance(why, Gone):
                self.on_gone(announced.id)
            return str(why)
        # Whatever one engine's answer trips in us, the others are still to be probed.
        except Exception as error:  # noqa: BLE001
            return f"its answer cannot be read: {error!r}"[:MAX_REASON]

    def _complain(self, instance_id: str, why: str) -> bool:
        """Returns whether that is news."""
        if self._complaints.get(instance_id) == why:
            return False
        self._complaints[instance_id] = why
        log.warning("%s is not up: %s", instance_id, why)
        return True


async def look(
    access: EngineAccess, announced: Instance, sleep_modes: SleepModes, patience: float
) -> ProbedEngine:
    """Raises NotWell, AskFailed; Gone if the engine accepts no connection.

    Args:
        patience: Seconds for the question whether it sleeps.
    """
    with access.visit(announced.url) as engine:
        health = await engine.get("/health")
        if health.status != 200:
            raise NotWell(f"GET /health answered {health.status}{_reason(health.body)}")
        cards = await _models(engine, announced)
        if await sleep_modes.asleep(engine, announced.id, patience):
            return ProbedEngine(announced, cards, asleep=True)
        instance = await _introduced(engine, announced)
    if announced.protocol == MOONCAKE and announced.role.serves(Role.PREFILL):
        instance = await _bootstrapped(access, announced)
    return ProbedEngine(instance, cards)


def _nobody_listens(of_what: object) -> None: ...


def _reason(said: bytes) -> str:
    """What an engine says of itself ("draining"), fit for a line in the log."""
    words = " ".join(said.decode(errors="replace").split())
    return f" {words[:MAX_REASON]!r}" if words else ""


async def _models(engine: OneShotClient, announced: Instance) -> Sequence[dict[str, Any]]:
    answer = await engine.get("/v1/models")
    if answer.status != 200:
        raise NotWell(f"GET /v1/models answered {answer.status}")
    try:
        cards = model_cards.read(answer.body)
    except ValueError as error:
        raise NotWell(f"GET /v1/models: {str(error)[:MAX_REASON]}") from None
    if not announced.model:
        return cards
    # Adapters (LoRA) are models of their own, whose cards name the one that they change.
    served = [card for card in cards if announced.model in (card["id"], card.get("parent"))]
    if not any(card["id"] == announced.model for card in served):
        raise NotWell(f"it does not serve the model {announced.model!r}")
    return served


async def _introduced(engine: OneShotClient, announced: Instance) -> Instance:
    """With the engine id that it says itself, where its protocol asks for one. Raises NotWell, AskFailed."""
    asked = None
    if announced.role.serves(Role.PREFILL):
        asked = registry.introduction(announced.protocol, announced.generation)
    if asked is None:
        return announced
    answer = await engine.get(asked.path)
    if answer.status != 200:
        raise NotWell(f"GET {asked.path} answered {answer.status}")
    try:
        engine_id = asked.read(answer.body[:MOST_QUERY_BYTES])
    except (ValueError, GatewayError) as error:
        raise NotWell(f"GET {asked.path}: {str(error)[:MAX_REASON]}") from None
    return replace(announced, engine_ids=((0, engine_id),))


async def _bootstrapped(access: EngineAccess, announced: Instance) -> Instance:
    """With its generation and engine ids. Raises NotWell, AskFailed."""
    generation = announced.generation
    if generation and generation not in NAMES_ENGINES:
        return announced
    try:
        with access.visit(mooncake.bootstrap_url(announced)) as bootstrap:
            answer = await bootstrap.get("/query")
    except Gone:
        if generation or announced.kv:
            raise NotWell("its Mooncake bootstrap server does not answer") from None
        return replace(announced, generation="a")
    if answer.status == 200:
        try:
            if len(answer.body) > MOST_QUERY_BYTES:
                raise ValueError("too long")
            engine_ids = mooncake.engine_ids(msgspec.json.decode(answer.body))
        except (ValueError, RecursionError, msgspec.DecodeError) as error:
            why = str(error)[:MAX_REASON]
            raise NotWell(f"its Mooncake bootstrap server answered nonsense: {why}") from None
        if not engine_ids:
            raise NotWell("its Mooncake bootstrap server knows no engine yet")
        return replace(announced, generation=generation or "d", engine_ids=engine_ids)
    if generation:
        raise NotWell(f"its Mooncake bootstrap server answered {answer.status}")
    return replace(announced, generation="b")
