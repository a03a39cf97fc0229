"""Tokens of prompts that came as text, asked of engines off the path of calls.

An engine's own /tokenize knows its tokenizer and its chat template, and computes nothing. It is
asked about a prompt once; what waits longest is given up when too much waits.

Source: vLLM 0.32.0, vllm/entrypoints/serve/tokenize/; measured in docs/decisions/.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import msgspec

from pdgate.gateway.kv_events.prompts import of_text
from pdgate.gateway.kv_events.translation import EventTranslation
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.upstream.one_shot import AskFailed
from pdgate.protocols.call import Call, encode
from pdgate.protocols.fields import UNREADABLE
from pdgate.protocols.tokenize import PATH, question
from pdgate.scheduling.endpoints import Endpoints

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
MOST_WAITING: Final = 256
TIMEOUT_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 64 << 20
"""Millions of tokens."""


class _Answer(msgspec.Struct):
    tokens: list[int]


_answer: Final = msgspec.json.Decoder(_Answer)


@dataclass(slots=True)
class TokenizedCounts:
    """
    Attributes:
        answered: Prompts whose tokens an engine told.
        failed: Those that it did not.
        given_up: Those that waited too long.
    """

    answered: int = 0
    failed: int = 0
    given_up: int = 0


class Tokenizing:
    def __init__(
        self, translation: EventTranslation, endpoints: Endpoints, access: EngineAccess
    ) -> None:
        self.asked = TokenizedCounts()
        self._translation = translation
        self._endpoints = endpoints
        self._access = access
        self._random = Random()
        self._waiting: deque[tuple[Call, Sequence[int]]] = deque()
        self._more = asyncio.Event()
        self._complained = ""

    def put(self, call: Call, blocks: Sequence[int]) -> None:
        if len(self._waiting) == MOST_WAITING:
            self._waiting.popleft()
            self.asked.given_up += 1
        self._waiting.append((call, blocks))
        self._more.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as all_:
            for _ in range(AT_ONCE):
                all_.create_task(self._work())

    async def _work(self) -> None:
        while True:
            while not self._waiting:
                self._more.clear()
                await self._more.wait()
            call, blocks = self._waiting.popleft()
            if not self._translation.links.knows(blocks):
                await self._ask(call, blocks)

    async def _ask(self, call: Call, blocks: Sequence[int]) -> None:
        url = self._anyone(call)
        if url is None:
            self.asked.failed += 1
            return
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                with self._access.visit(url) as engine:
                    body = encode(question(call))
                    answer = await engine.post(PATH, body, most_bytes=MAX_ANSWER_BYTES)
            if answer.status != 200:
                self._failed(f"{url}{PATH} answered {answer.status}")
                return
            tokens = _answer.decode(answer.body).tokens
        except TimeoutError:
            self._failed(f"{url}{PATH} did not answer within {TIMEOUT_SECONDS:g} s")
            return
        except AskFailed as error:
            self._failed(f"{url}: {error}")
            return
        except UNREADABLE as error:
            self._failed(f"{url}{PATH}: {error}")
            return
        self.asked.answered += 1
        self._complained = ""
        self._translation.learn(of_text(call, blocks, tokens))

    def _anyone(self, call: Call) -> str | None:
        """The URL of an engine that serves the model, whichever."""
        serving = [
            c for c in self._endpoints if c.up and (not call.model or call.model in c.models)
        ]
        return self._random.choice(serving).instance.url if serving else None

    def _failed(self, why: str) -> None:
        """Said once per kind of trouble."""
        self.asked.failed += 1
        if why != self._complained:
            self._complained = why
            log.info("the tokens of a prompt are not known: %s", why)
