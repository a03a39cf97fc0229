"""The contender that is guarded: the gateway as it serves, with its safety features on.

Two engines of each role, API keys, admission and a limit for each call, on top of what is on
by itself. It is built as `pdgate serve` builds it; only its sockets are not there.
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from unittest.mock import patch

import uvicorn
from uvicorn.lifespan.on import LifespanOn
from uvicorn.server import ServerState

from benchmarks.guard.memory_wire import HOST, Client
from benchmarks.guard.scenarios import KEY
from benchmarks.guard.still_loop import StillLoop
from pdgate.gateway.config import Settings
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.watchdog import Watchdog
from pdgate.gateway.wiring import build

PORT = 8000
NEVER_SECONDS = 1e9

SETTINGS = Settings.model_validate(
    {
        "instances": [
            {"url": f"http://{HOST}:{port}", "role": role}
            for role, ports in (("prefill", (9001, 9002)), ("decode", (9003, 9004)))
            for port in ports
        ],
        "api_keys": [
            {
                "name": "guard",
                "sha256": hashlib.sha256(KEY.encode()).hexdigest(),
                "max_calls": 100,
                "calls_per_minute": 10**9,
            }
        ],
        "admission": {"prefill_concurrency": 64, "decode_concurrency": 256},
        "timeouts": {"total_seconds": 3600},
        # They are looked at once, before calls come: in a run of no time nothing is due again.
        "health": {"interval_seconds": NEVER_SECONDS},
        "engine_metrics": {"interval_seconds": NEVER_SECONDS},
    }
)


@asynccontextmanager
async def gateway(
    loop: StillLoop,
    settings: Settings = SETTINGS,
    protocol_class: type[HotProtocol] = HotProtocol,
) -> AsyncIterator[Client]:
    front = build(settings)
    config = uvicorn.Config(
        front, http=protocol_class, lifespan="on", proxy_headers=False, log_config=None
    )
    config.load()
    lifespan = LifespanOn(config)
    # It samples by the clock on the wall, of which a run of no time has any amount.
    with patch.object(Watchdog, "watching", lambda _: nullcontext()):
        await lifespan.startup()
    if lifespan.should_exit:
        raise SystemExit("the gateway did not start")
    state: dict[str, object] = {}
    protocol = protocol_class(config, ServerState(), state, _loop=loop)
    try:
        yield Client(loop, protocol, PORT)
    finally:
        await lifespan.shutdown()
