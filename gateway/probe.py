"""Looks at the engines: are they well, which models do they serve, who are they now?

httpx2 is right here: a probe is rare, and wants a complete client. What it finds goes
to scheduling's Instances; what operators should know goes to the log, once per change.

Mooncake's prefill engines change their engine id with every restart and decode hangs on
an old one, so their bootstrap server is asked in every round. Which generation an engine
speaks, if nobody said, follows from what answers at the bootstrap address:

    a JSON of engine ids        d    (current vLLM)
    another HTTP answer         b    (a bootstrap server without /query)
    nothing, none configured    a    (serial, no bootstrap server)
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import httpx2

from pdgate.protocols.dialects import mooncake
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.instances import Instances

log = logging.getLogger(__name__)

MOONCAKE = "vllm-mooncake"
NAMES_ENGINES = ("c", "d")


class NotWell(Exception):
    """The engine cannot take calls; the message says why, for operators."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look at an engine found."""

    instance: Instance
    cards: Sequence[dict[str, Any]]

    @property
    def models(self) -> list[str]:
        return [card["id"] for card in self.cards]


class Prober:
    """Looks at every instance every `interval_seconds`, inside its `run`.

    Attributes:
        cards: Instance id -> its entries of /v1/models, from its last good answer.
    """

    def __init__(
        self, instances: Instances, interval_seconds: float, timeout_seconds: float
    ) -> None:
        self.cards: dict[str, Sequence[dict[str, Any]]] = {}
        self._instances = instances
        self._interval_seconds = interval_seconds
        self._timeout_seconds = timeout_seconds
        self._complaints: dict[str, str] = {}
        self._announced = {c.instance.id: c.instance for c in instances}
        self._new: set[str] = set()
        self._somebody_is_new = asyncio.Event()
        self.first_round = asyncio.Event()
        """Set when every instance has been looked at once."""

    async def run(self) -> None:
        # A fresh connection each time: whether it is accepted is part of the question, and
        # a kept one that the engine has closed meanwhile would look like a sick engine.
        limits = httpx2.Limits(max_keepalive_connections=0)
        async with httpx2.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:
            while True:
                await self._round(client, list(self._announced))
                self.first_round.set()
                # Newcomers are not kept waiting, and do not keep the next round waiting.
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._interval_seconds):
                        while True:
                            await self._somebody_is_new.wait()
                            await self._round(client, list(self._new))

    def add(self, announced: Instance) -> None:
        """One more to look at, soon; or another record of one that is known."""
        self._announced[announced.id] = announced
        self._new.add(announced.id)
        self._somebody_is_new.set()

    def forget(self, instance_id: str) -> None:
        self._announced.pop(instance_id, None)
        self.cards.pop(instance_id, None)
        self._complaints.pop(instance_id, None)

    async def _round(self, client: httpx2.AsyncClient, instance_ids: Sequence[str]) -> None:
        self._new.clear()
        self._somebody_is_new.clear()
        async with asyncio.TaskGroup() as round_:
            for instance_id in instance_ids:
                if announced := self._announced.get(instance_id):
                    round_.create_task(self._look(client, announced))

    async def _look(self, client: httpx2.AsyncClient, announced: Instance) -> None:
        found = await self._seen(client, announced)
        instance_id = announced.id
        # Forgotten or replaced while we looked: then this says nothing of who is there now.
        if self._announced.get(instance_id) is not announced:
            return
        if isinstance(found, str):
            self._complain(instance_id, found)
            self._instances.mark_down(instance_id)
            return
        if self._complaints.pop(instance_id, None) is not None:
            log.info("%s is up", instance_id)
        self.cards[instance_id] = found.cards
        self._instances.put(found.instance)
        self._instances.mark_up(instance_id, found.models)

    async def _seen(self, client: httpx2.AsyncClient, announced: Instance) -> Seen | str:
        """What was found, or why the engine is not well."""
        try:
            # For the whole look: byte by byte, an engine could hold up everybody's probes.
            async with asyncio.timeout(self._timeout_seconds):
                return await look(client, announced)
        except TimeoutError:
            return f"no answer within {self._timeout_seconds:g} s"
        except NotWell as why:
            return str(why)
        # Whatever one engine's answer trips in us, the others are still to be probed.
        except Exception as error:  # noqa: BLE001
            return f"its answer cannot be read: {error!r}"

    def _complain(self, instance_id: str, why: str) -> None:
        if self._complaints.get(instance_id) != why:
            self._complaints[instance_id] = why
            log.warning("%s is not up: %s", instance_id, why)


async def look(client: httpx2.AsyncClient, announced: Instance) -> Seen:
    """Raises NotWell."""
    try:
        health = await client.get(f"{announced.url}/health")
        if health.status_code != 200:
            raise NotWell(f"GET /health answered {health.status_code}")
        cards = await _models(client, announced)
        instance = announced
        if announced.protocol == MOONCAKE and announced.role.serves(Role.PREFILL):
            instance = await _bootstrapped(client, announced)
    except httpx2.HTTPError as error:
        raise NotWell(f"{type(error).__name__}: {error}") from None
    return Seen(instance, cards)


async def _models(client: httpx2.AsyncClient, announced: Instance) -> Sequence[dict[str, Any]]:
    answer = await client.get(f"{announced.url}/v1/models")
    if answer.status_code != 200:
        raise NotWell(f"GET /v1/models answered {answer.status_code}")
    try:
        cards = [card for card in answer.json()["data"] if isinstance(card["id"], str)]
    except (ValueError, KeyError, TypeError):
        raise NotWell("GET /v1/models answered something else than a list of models") from None
    if not announced.model:
        return cards
    served = [card for card in cards if card["id"] == announced.model]
    if not served:
        raise NotWell(f"it does not serve the model {announced.model!r}")
    return served


async def _bootstrapped(client: httpx2.AsyncClient, announced: Instance) -> Instance:
    """With its generation and engine ids. Raises NotWell."""
    generation = announced.generation
    if generation and generation not in NAMES_ENGINES:
        return announced
    try:
        answer = await client.get(f"{mooncake.bootstrap_url(announced)}/query")
    except httpx2.ConnectError:
        if generation or announced.kv:
            raise NotWell("its Mooncake bootstrap server does not answer") from None
        return replace(announced, generation="a")
    if answer.status_code == 200:
        try:
            engine_ids = mooncake.engine_ids(answer.json())
        except ValueError as error:
            raise NotWell(f"its Mooncake bootstrap server answered nonsense: {error}") from None
        if not engine_ids:
            raise NotWell("its Mooncake bootstrap server knows no engine yet")
        return replace(announced, generation=generation or "d", engine_ids=engine_ids)
    if generation:
        raise NotWell(f"its Mooncake bootstrap server answered {answer.status_code}")
    return replace(announced, generation="b")
