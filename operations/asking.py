"""Operator's question to a running gateway.

with asking("http://127.0.0.1:8000", token_file) as gateway:
    found = gateway.get("/debug/calls/mine")
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from pdgate.cluster import secret
from pdgate.cluster.printable import printable

TIMEOUT_SECONDS: Final = 10.0


class BadAsk(Exception):
    """What the operator said cannot be done; the message says what to say instead. Exit code 2."""


class GatewayAway(Exception):
    """The gateway does not answer, or not as one. Exit code 1."""


@dataclass(frozen=True, slots=True)
class AskedAnswer:
    """What it answered; `body` is None where that is no JSON."""

    status: int
    body: Any

    @property
    def message(self) -> str:
        """Message of an error, as it words it, in characters for a terminal; else empty."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        return printable(message) if isinstance(message, str) else ""


class Gateway:
    def __init__(self, client: httpx2.Client, url: str) -> None:
        self._client = client
        self.url = url

    def get(self, path: str) -> AskedAnswer:
        """Raises GatewayAway; BadAsk where it wants another token, or one at all."""
        try:
            answer = self._client.get(self.url + path)
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise GatewayAway(f"the gateway at {self.url} does not answer: {why}") from None
        if answer.status_code in (401, 403):
            raise BadAsk(f"{self.url} asks for the admin token: --admin-token-file FILE")
        try:
            body = answer.json()
        except ValueError:
            body = None
        return AskedAnswer(answer.status_code, body)


def address(url: str, flag: str = "") -> str:
    """A gateway's URL without a slash at the end; `flag` is where it was given. Raises BadAsk."""
    try:
        parts = urlsplit(url)
        # A port beyond 65535 is found when it is asked for.
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise BadAsk(f"{flag} {url!r} is not a URL like http://host:port".lstrip())
    return url.rstrip("/")


def token_of(file: Path) -> str:
    """The admin token in a file. Raises BadAsk."""
    try:
        return secret.token(str(file))
    except ValueError as error:
        raise BadAsk(f"--admin-token-file: {error}") from None


@contextmanager
def asking(url: str, token_file: Path | None = None) -> Iterator[Gateway]:
    """A new connection for each question, so that any of several workers may answer.

    Raises BadAsk.
    """
    url = address(url, "--gateway")
    headers = {}
    if token_file is not None:
        headers = {"authorization": f"Bearer {token_of(token_file)}"}
    # A proxy of the environment is for the world outside.
    with httpx2.Client(
        headers=headers,
        timeout=TIMEOUT_SECONDS,
        trust_env=False,
        limits=httpx2.Limits(max_keepalive_connections=0),
    ) as client:
        yield Gateway(client, url)
