"""Servers that docs/embedding.md names: strangers' floods take as little memory there as at `pdgate serve`.

What is pipelined, and heads, are bounded by the server of an application, before the application is
asked. uvicorn with httptools, its default where that is installed, makes an object of some 3 KB of each
request of a read, and bounds no head: of these floods it held 290 to 920 MB, in front of an application
of six lines 190 to 290. Source: uvicorn 0.54, protocols/http/httptools_impl.py, on_headers_complete().
"""

import asyncio
import sys
from collections.abc import Callable, Mapping
from itertools import cycle
from pathlib import Path

import pytest

from tests.adversary.test_memory import (
    AT_ONCE,
    bodies_in_two_byte_chunks,
    heads_of_other_routes,
    keys_file,
    metrics_that_nobody_reads,
    questions_that_nobody_reads_the_answers_of,
    refusals_that_nobody_reads,
)
from tests.end_to_end.openai_sdk import application
from tests.support.besieged import Besieged, at_once
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import child

FLOODS = (
    refusals_that_nobody_reads,
    questions_that_nobody_reads_the_answers_of,
    metrics_that_nobody_reads,
    heads_of_other_routes,
    bodies_in_two_byte_chunks,
)
APPLICATION = f"{application.__name__}:app"
BIN = Path(sys.executable).parent
SERVERS: Mapping[str, Callable[[str], list[str]]] = {
    "hypercorn": lambda port: ["--bind", f"{LOOPBACK}:{port}"],
    "granian": lambda port: ["--interface", "asgi", "--host", LOOPBACK, "--port", port],
    "uvicorn": lambda port: ["--http", "h11", "--host", LOOPBACK, "--port", port],
}


@pytest.mark.parametrize("server", SERVERS)
async def test_all_floods_without_a_key_at_once(
    server: str, seconds: float, tmp_path: Path
) -> None:
    port = free_port()
    config = tmp_path / "pdgate.toml"
    config.write_text(
        f'api_keys_file = "{keys_file(tmp_path)}"\n'
        'instances = [{ url = "http://127.0.0.1:9", role = "plain" }]\n'
    )
    command = [str(BIN / server), *SERVERS[server](str(port)), APPLICATION]
    with child(command, name=server, env={"PDGATE_CONFIG": str(config)}) as process:
        gateway = Besieged(process, LOOPBACK, port)
        await asyncio.to_thread(process.wait_for_http, f"{gateway.url}/health")
        floods = cycle(FLOODS)
        async with gateway.watched() as watch:
            await at_once(AT_ONCE, lambda: next(floods)(gateway), seconds)

        assert watch.peak_bytes <= watch.allowed_bytes
        assert watch.bystander.answers > 0
        assert (await gateway.get("/health"))[0] == 200
