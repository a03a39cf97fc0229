"""The engines of a model, asked at once: each answers for itself, and what it says is bounded.

Some requests are one half of a collective (weights by NCCL), so no engine waits for another; only bodies that
are large are sent to a few at a time, as each connection holds one of its own.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.upstream.one_shot import AskFailed, OneShotAnswer
from pdgate.protocols.fields import UNREADABLE
from pdgate.scheduling.endpoint import Endpoint

MOST_ANSWER_BYTES: Final = 256 << 10
MOST_BYTES: Final = 4 << 20
"""Of all answers together."""
LARGE_BYTES: Final = 1 << 20
LARGE_AT_ONCE: Final = 4
AT_ONCE: Final = 256
LONGEST_TEXT: Final = 2000
"""Of an answer that is no JSON, in characters."""
READ_AT_ONCE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class ControlledEngine:
    """One process that answers HTTP, however many ranks are behind its URL.

    Attributes:
        ids: Of its instances.
    """

    url: str
    role: str
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineReply:
    """
    Attributes:
        status: None where no whole answer came.
        error: Why there is none.
    """

    engine: ControlledEngine
    status: int | None = None
    body: Any = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the engine did what was asked; SGLang says that in the body, too."""
        if self.status is None or not 200 <= self.status < 300:
            return False
        return not (isinstance(self.body, dict) and self.body.get("success") is False)

    @property
    def busy(self) -> bool:
        """Whether it cannot empty its caches yet: SGLang says 400 while requests run, vLLM that it had no success
        while blocks are held, as by a prompt that no decode engine has fetched."""
        return self.status == 400 or (self.status == 200 and not self.ok)

    @property
    def refused(self) -> bool:
        return self.status is not None and not self.ok

    def as_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "id": self.engine.ids[0],
            "url": self.engine.url,
            "role": self.engine.role,
            "ok": self.ok,
            "status": self.status,
        }
        if len(self.engine.ids) > 1:
            shown["ranks"] = len(self.engine.ids)
        return shown | ({"error": self.error} if self.error else {"body": self.body})


def engines_of(endpoints: Sequence[Endpoint]) -> list[ControlledEngine]:
    """One for each URL, in the order in which they are known."""
    found: dict[str, ControlledEngine] = {}
    for endpoint in endpoints:
        one = endpoint.instance
        known = found.get(one.url)
        ids = (one.id,) if known is None else (*known.ids, one.id)
        role = one.role.value if known is None else known.role
        found[one.url] = ControlledEngine(one.url, role, ids)
    return list(found.values())


async def ask_all(
    access: EngineAccess,
    engines: Sequence[ControlledEngine],
    method: str,
    target: str,
    body: bytes,
    seconds: float,
) -> list[EngineReply]:
    """What each says, in their order, within `seconds` from now. Never raises for what an engine does."""
    places = asyncio.Semaphore(LARGE_AT_ONCE if len(body) > LARGE_BYTES else AT_ONCE)
    most = min(MOST_ANSWER_BYTES, MOST_BYTES // max(1, len(engines)))
    until = asyncio.get_running_loop().time() + seconds

    async def asked(engine: ControlledEngine) -> EngineReply:
        try:
            async with asyncio.timeout_at(until), places:
                with access.visit(engine.url) as visit:
                    if method == "GET":
                        answer = await visit.get(target, most_bytes=most)
                    else:
                        answer = await visit.post(target, body, most_bytes=most)
        except TimeoutError:
            return EngineReply(engine, error=f"no answer within {seconds:g} s")
        except AskFailed as error:
            return EngineReply(engine, error=str(error)[:LONGEST_TEXT])
        return EngineReply(engine, answer.status, await _read(answer))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(asked(engine)) for engine in engines]
    return [task.result() for task in tasks]


async def _read(answer: OneShotAnswer) -> Any:
    if len(answer.body) > READ_AT_ONCE_BYTES:
        return await asyncio.to_thread(_parsed, answer.body)
    return _parsed(answer.body)


def _parsed(body: bytes) -> Any:
    """JSON as it is; else its beginning as text."""
    if not body:
        return None
    try:
        return msgspec.json.decode(body)
    except UNREADABLE:
        return body.decode(errors="replace")[:LONGEST_TEXT]
