"""The gateway as its users run it: `python -m pdgate serve`, over a pair of engines."""

import json
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from tests.end_to_end.vllm.engines import Transfer
from tests.end_to_end.vllm.metrics import settles
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import Child, child

MODES: Final = ("batch", "staged")
"""Scheduling modes."""
START_SECONDS: Final = 300

UNWATCHED: Final = ("--frozen-after", "0")
"""Tests freeze engines to hold something up; most do not ask what comes of that by itself."""


@dataclass(frozen=True, slots=True)
class Gateway:
    url: str
    protocol: str
    mode: str
    process: Child

    def record(self, call_id: str) -> dict[str, Any]:
        """What the gateway says that happened to a call, once the call is over."""
        found: dict[str, Any] = {}

        def over() -> bool:
            nonlocal found
            with urllib.request.urlopen(f"{self.url}/debug/calls/{call_id}", timeout=10) as answer:
                found = json.load(answer)
            return bool(found["outcome"] != "running")

        assert settles(over), f"the gateway thinks that the call still runs: {found}"
        return found


class Fronted(Protocol):
    """Engines that a gateway can stand in front of.

    Attributes:
        serve: The flags that tell it of them.
    """

    @property
    def transfer(self) -> Transfer: ...
    @property
    def serve(self) -> Sequence[str]: ...


@contextmanager
def gateway_over(
    pair: Fronted, mode: str, logs: Path, protocol: str = "", flags: Sequence[str] = UNWATCHED
) -> Iterator[Gateway]:
    """`protocol`: another than the pair's first one."""
    protocol = protocol or pair.transfer.protocol
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    command = [
        *(sys.executable, "-m", "pdgate", "serve"),
        *("--host", LOOPBACK, "--port", str(port)),
        *("--pdd-protocol", protocol),
        *pair.serve,
        *("--scheduling-mode", mode),
        "--debug-routes",
        # On two cores that three engines and others share, a healthy one may answer late.
        *("--health-timeout", "20"),
        *flags,
    ]
    log = logs / f"gateway-{pair.transfer.name}-{protocol}-{mode}-{port}.log"
    with child(command, log=log, name="gateway") as process:
        process.wait_for_http(f"{url}/ready", START_SECONDS)
        yield Gateway(url, protocol, mode, process)
