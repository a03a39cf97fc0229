"""A Component is all that a part of the gateway needs: what it says is run, counted, told, answered and reloaded."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import APIRouter

from pdgate.gateway.component import Component
from pdgate.gateway.config import Settings
from pdgate.gateway.config.setting import OnReload
from pdgate.gateway.lifecycle.reload import Change
from pdgate.gateway.metrics import families
from pdgate.gateway.metrics.family import Samples
from pdgate.gateway.wiring import on_demand
from pdgate.protocols.instance import Role
from tests.support.fleet import PATIENCE_SECONDS, Engine, gateway_of

ADMIN = {"authorization": "Bearer admin-token-of-sixteen"}


class Told:
    def as_json(self) -> dict[str, str]:
        return {"state": "current"}


class Part:
    """One of every kind; the rule is one that the gateway has no other part for."""

    def __init__(self) -> None:
        self.ran = asyncio.Event()
        self.closed = False
        self.wanted: Settings | None = None

    async def run(self) -> None:
        self.ran.set()
        await asyncio.Event().wait()

    def collect(self) -> Iterator[Samples]:
        yield families.TRACES.samples([("sent", 7)])

    def close(self) -> None:
        self.closed = True

    def routes(self, token: str) -> list[APIRouter]:
        router = APIRouter()

        @router.get("/admin/part")
        async def part() -> dict[str, int]:
            return {"token": len(token)}

        return [router]

    def prepare(self, wanted: Settings) -> Change:
        def change() -> None:
            self.wanted = wanted

        return change

    def component(self) -> Component:
        return Component(
            jobs={"part": self.run},
            close=self.close,
            collect=self.collect,
            ready={"part": Told()},
            routes=self.routes,
            reconfigure={OnReload.RESTART: self.prepare},
            each_reload=self.prepare,
        )


async def test_what_a_component_says_is_there_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    part = Part()
    monkeypatch.setattr(on_demand, "tracing", lambda _: part.component())
    token = tmp_path / "token"
    token.write_text("admin-token-of-sixteen")
    engines = Engine(Role.PREFILL), Engine(Role.DECODE)

    async with gateway_of(*engines, admin_token_file=str(token)) as gateway:
        await asyncio.wait_for(part.ran.wait(), PATIENCE_SECONDS)
        ready = (await gateway.http.get("/ready")).json()
        page = (await gateway.http.get("/metrics")).text
        routed = await gateway.http.get("/admin/part")
        jobs = (await gateway.http.get("/admin/jobs", headers=ADMIN)).json()
        await gateway.http.post("/admin/reload", headers=ADMIN)

        assert ready["part"] == {"state": "current"}
        assert 'pdgate_traces_total{result="sent"} 7.0' in page
        assert routed.json() == {"token": len("admin-token-of-sixteen")}
        assert [job["running"] for job in jobs if job["name"] == "part"] == [True]
        assert part.wanted is not None
        assert OnReload.RESTART in gateway.reload.rules
        assert not part.closed
    assert part.closed
