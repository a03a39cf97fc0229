"""The gateway's face is tested on the event loop that it runs on, with both front ends."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import uvloop

from pdgate.gateway.front.hot_protocol import HotProtocol
from tests.support import fleet


@pytest.hookimpl(trylast=True)
def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(params=["asgi", "hot"])
def front_end(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What clients see is the same, also where another ASGI server has the connections."""
    servers: Mapping[str, Any] = {"hot": HotProtocol, "asgi": "httptools", "hypercorn": "hypercorn"}
    monkeypatch.setattr(fleet, "HTTP", servers[request.param])
