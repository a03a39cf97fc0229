"""Site: what a check sees; a gateway, the engines behind it, and one that works alone."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import count
from secrets import token_hex
from time import monotonic
from typing import Any, Protocol

import httpx2

from pdgate.forwarders.base import Forwarder, Mode
from pdgate.lab.conformance.answer import CollectedAnswer
from pdgate.lab.conformance.api import ApiRefused, ApiUnderTest
from pdgate.lab.conformance.check import Broken, NotApplicable
from pdgate.lab.conformance.metrics import EngineUnderTest, MetricsReading
from pdgate.protocols.call import CHAT, COMPLETIONS

POLL_SECONDS = 0.05
ENDS_SECONDS = 10.0
"""For a leg beside the answer, on a busy machine."""


Made = Sequence[str] | EngineUnderTest
"""An engine that runs, or one to start, by its further flags."""


class Lab(Protocol):
    """Starts more of what a site has, for checks that harm it; all of it ends with the block."""

    def pairs(
        self, prefills: Sequence[Made], decodes: Sequence[Made]
    ) -> AbstractAsyncContextManager["Site"]:
        """A gateway of its own in front of these engines."""


@dataclass(slots=True)
class Site:
    """
    Attributes:
        alone: An engine that is asked directly, and whose answers are right.
        lab: None where the engines are the operator's own, to be kept.
        salt: Of its prompts, which no other site has.
    """

    forwarder: Forwarder
    mode: Mode
    gateway: ApiUnderTest
    prefills: Sequence[EngineUnderTest]
    decodes: Sequence[EngineUnderTest]
    alone: ApiUnderTest
    model: str
    lab: Lab | None
    salt: str = field(default_factory=lambda: token_hex(4))
    _numbers: "count[int]" = field(default_factory=count)

    @property
    def engines(self) -> Sequence[EngineUnderTest]:
        return (*self.prefills, *self.decodes)

    def fresh(self, words: int = 12) -> str:
        """A text that is new: no engine has anything of it in its prefix cache."""
        number = next(self._numbers)
        return " ".join(f"{self.salt}{number}{'abcdefgh'[word % 8]}" for word in range(words))

    def body(self, prompt: object, **fields: Any) -> dict[str, Any]:
        """Body of a completion: greedy, and of a few tokens, unless `fields` say otherwise."""
        basic = {"model": self.model, "prompt": prompt, "max_tokens": 8, "temperature": 0}
        return {**basic, **fields}

    def chat(self, text: str, **fields: Any) -> dict[str, Any]:
        basic = {"model": self.model, "max_tokens": 8, "temperature": 0}
        return {**basic, "messages": [{"role": "user", "content": text}], **fields}

    async def both(
        self, path: str, body: Mapping[str, Any]
    ) -> tuple[CollectedAnswer, CollectedAnswer]:
        """What the gateway says, and then the engine alone.

        In this order: the latter may be the decode engine, which would keep the prompt. Raises
        NotApplicable for what the engine alone refuses as well: a server without tools, say.
        """
        try:
            found = await self.gateway.ask(path, body)
        except ApiRefused as refused:
            if refused.by_the_client:
                await self._refused_alone(path, body)
            raise
        return found, await self._alone(path, body)

    async def _refused_alone(self, path: str, body: Mapping[str, Any]) -> None:
        """Raises NotApplicable if it is."""
        try:
            await self._alone(path, body)
        except ApiRefused as refused:
            if refused.by_the_client:
                raise NotApplicable(f"the engine alone refuses it, too: {refused}") from None
            raise

    async def _alone(self, path: str, body: Mapping[str, Any]) -> CollectedAnswer:
        try:
            return await self.alone.ask(path, body)
        except httpx2.HTTPError as error:
            told = f"{type(error).__name__} {error}".rstrip()
            raise Broken(
                f"the engine to compare with, {self.alone.url} (--alone), does not answer: {told}"
            ) from error

    async def completes(self, prompt: object, **fields: Any) -> CollectedAnswer:
        return await self.gateway.ask(COMPLETIONS, self.body(prompt, **fields))

    async def chats(self, text: str, **fields: Any) -> CollectedAnswer:
        return await self.gateway.ask(CHAT, self.chat(text, **fields))

    async def record(self, call_id: str) -> dict[str, Any]:
        """What the gateway says of a call that was answered, when its last leg has ended.

        Raises ApiRefused where it does not show that.
        """
        found: dict[str, Any] = {}

        async def running() -> str:
            response = await self.gateway.get(f"/debug/calls/{call_id}")
            found.update(response.json())
            return "running" if found["outcome"] == "running" else ""

        await until(running, ENDS_SECONDS, monotonic)
        return found

    async def pages(self, engines: Sequence[EngineUnderTest]) -> list[MetricsReading]:
        return [await engine.page() for engine in engines]


async def until(
    question: Callable[[], Awaitable[str]], seconds: float, clock: Callable[[], float]
) -> str:
    """Waits until the answer is "", and returns the last one: what is still in the way."""
    end = clock() + seconds
    while why_not := await question():
        if clock() > end:
            return why_not
        # What is asked is another process, so there is no event to wait for.
        await asyncio.sleep(POLL_SECONDS)
    return ""
