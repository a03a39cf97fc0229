"""Scripted engines that can be controlled, and a gateway that an operator may ask to do so."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pdgate.gateway.config.sections import EngineControlSection
from pdgate.gateway.control.wire import PATHS
from pdgate.protocols.instance import Role
from tests.support.fleet import ANSWER, Engine, Gateway, as_json, gateway_of
from tests.support.raw_server import Peer, Script

TOKEN = "correct-horse-battery-staple"
KNOWN = {"authorization": f"Bearer {TOKEN}"}
GOOD = as_json({"success": True, "message": "done"})


class Controlled(Engine):
    """
    Attributes:
        orders: (path with query, body) of what it was told, calls left out.
        answers: Path -> what it says to that; GOOD unless there is one.
        first: Path -> what it says to that at first, one after another.
    """

    def __init__(self, role: Role, script: Script | None = None, *models: str) -> None:
        super().__init__(role, script, *models)
        self.orders: list[tuple[str, Any]] = []
        self.answers: dict[str, bytes] = {}
        self.first: dict[str, list[bytes]] = {}

    async def serve(self, peer: Peer) -> None:
        method, target, _ = peer.request.line.decode().split(" ")
        path = target.partition("?")[0]
        if path not in PATHS or path == "/is_sleeping":
            await super().serve(peer)
            return
        body = peer.request.body
        self.orders.append((f"{method} {target}", json.loads(body) if body else None))
        first = self.first.get(path)
        await peer.send(first.pop(0) if first else self.answers.get(path, GOOD))

    @property
    def paths(self) -> list[str]:
        """Where it was told something; questions left out."""
        return [target for target, _ in self.orders if target.startswith("POST")]


ONCE = as_json(ANSWER, b"200 OK", b"connection: close")
"""An answer to a held call, whose script takes no other on its connection."""
REFUSES = as_json({"success": False, "message": "no such file"}, b"400 Bad Request")


@asynccontextmanager
async def controlling(
    folder: Path, *engines: Engine, control: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    file = folder / "token"
    file.write_text(TOKEN)
    section = EngineControlSection(enabled=True, **(control or {}))
    async with gateway_of(
        *engines, admin_token_file=str(file), control=section, **settings
    ) as gateway:
        yield gateway


async def tell(gateway: Gateway, target: str, body: Any = None) -> tuple[int, dict[str, Any]]:
    """Status and JSON of a POST by an operator."""
    content = b"" if body is None else json.dumps(body).encode()
    answer = await gateway.http.post(target, content=content, headers=KNOWN)
    said: dict[str, Any] = answer.json()
    return answer.status_code, said
