"""Engines that are asked in passing (gateway/upstream/one_shot.py), without a connection.

async def answer(question: Question) -> Said: ...     # or raises AskFailed, as Gone

Reader(..., access=Visited(answer))
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple
from urllib.parse import urlsplit

from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.upstream.one_shot import MOST_BYTES, AskFailed, OneShotAnswer, OneShotClient
from pdgate.gateway.upstream.pool import UrlTarget


class Question(NamedTuple):
    """
    Attributes:
        host: Of the engine's URL.
        body: Empty if it was a GET.
    """

    host: str
    path: str
    body: bytes = b""


Answer = Callable[[Question], Awaitable[OneShotAnswer]]


class Visited(EngineAccess):
    def __init__(self, answer: Answer) -> None:
        super().__init__()
        # The base is frozen.
        self.__dict__["answer"] = answer

    answer: Answer

    def visit(self, url: str) -> OneShotClient:
        return _Visit(url, self.answer)


class _Visit(OneShotClient):
    def __init__(self, url: str, answer: Answer) -> None:
        super().__init__(UrlTarget(url), None, "")
        self._host = urlsplit(url).hostname or ""
        self._scripted = answer

    async def get(
        self, path: str, *, accept: str = "*/*", most_bytes: int = MOST_BYTES
    ) -> OneShotAnswer:
        return await self._answered("GET", Question(self._host, path), most_bytes)

    async def post(self, path: str, body: bytes, *, most_bytes: int = MOST_BYTES) -> OneShotAnswer:
        return await self._answered("POST", Question(self._host, path, body), most_bytes)

    async def _answered(self, method: str, question: Question, most_bytes: int) -> OneShotAnswer:
        said = await self._scripted(question)
        if len(said.body) > most_bytes:
            raise AskFailed(
                f"{method} {question.path}: its answer is longer than {most_bytes} bytes"
            )
        return said
