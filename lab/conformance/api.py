"""OpenAI-compatible API, the gateway's or an engine's, asked over HTTP."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2

from pdgate.lab.conformance import answer
from pdgate.lab.conformance.answer import CollectedAnswer, MalformedAnswer
from pdgate.protocols import sse

CALL_SECONDS = 60.0
EVENT_STREAM = "text/event-stream"
REQUEST_ID = "x-request-id"


class ApiRefused(Exception):
    """The API answered with an error.

    Attributes:
        error: Its object, as OpenAI has it; empty if it sent none.
    """

    def __init__(self, status: int, error: Mapping[str, Any], text: str) -> None:
        super().__init__(f"status {status}: {error.get('message') or text[:200]}")
        self.status = status
        self.error = error

    @property
    def by_the_client(self) -> bool:
        """Whether the status says that the request is wrong, as it would again."""
        return 400 <= self.status < 500


@dataclass(frozen=True, slots=True)
class ApiUnderTest:
    """
    Attributes:
        url: Without /v1.
    """

    url: str
    http: httpx2.AsyncClient

    async def ask(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> CollectedAnswer:
        """Streamed if the body asks for it. Raises ApiRefused, MalformedAnswer, httpx2.HTTPError."""
        if body.get("stream"):
            async with self.stream(path, body, headers) as (response, events):
                found = answer.streamed([event async for event in events])
        else:
            response = await self.post(path, body, headers)
            found = answer.whole(response.json())
        found.request_id = response.headers.get(REQUEST_ID, "")
        return found

    async def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        """Raises ApiRefused, httpx2.HTTPError."""
        response = await self.http.post(
            f"{self.url}{path}", json=body, headers=headers, timeout=CALL_SECONDS
        )
        _raise_refusal(response)
        return response

    @asynccontextmanager
    async def stream(
        self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[tuple[httpx2.Response, AsyncIterator[bytes]]]:
        """Its events, as they come; leaving the block early closes the connection."""
        async with self.http.stream(
            "POST", f"{self.url}{path}", json=body, headers=headers, timeout=CALL_SECONDS
        ) as response:
            if response.status_code != httpx2.codes.OK:
                await response.aread()
                _raise_refusal(response)
            kind = response.headers.get("content-type", "")
            if not kind.startswith(EVENT_STREAM):
                raise MalformedAnswer(f"a stream was asked for, and its content-type is {kind!r}")
            yield response, _events(response)

    async def get(self, path: str) -> httpx2.Response:
        """Raises ApiRefused, httpx2.HTTPError."""
        response = await self.http.get(f"{self.url}{path}")
        _raise_refusal(response)
        return response


async def _events(response: httpx2.Response) -> AsyncIterator[bytes]:
    splitter = sse.Splitter()
    async for chunk in response.aiter_bytes():
        for event in splitter.feed(chunk):
            yield event
    if splitter.rest:
        raise MalformedAnswer("the stream breaks off inside an event")


def _raise_refusal(response: httpx2.Response) -> None:
    if response.status_code == httpx2.codes.OK:
        return
    try:
        error = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        error = {}
    raise ApiRefused(response.status_code, error if isinstance(error, dict) else {}, response.text)
