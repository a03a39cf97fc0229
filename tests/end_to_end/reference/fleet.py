"""Starts reference engines and gateways when a test first needs them.

    fleet.single()                                the undisaggregated engine
    fleet.pair("vllm-nixl", "shm")                one prefill and one decode engine
    with fleet.gateway(pair, Route("vllm-nixl", "staged")) as gateway: ...

Engines are shared by all tests; a gateway lives as long as its block. All engines have the built-in model, whose weights are the same in every process.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx2
from openai import OpenAI

from tests.support.processes import Child, child
from tests.support.waiting import PATIENCE_SECONDS, wait_until

START_SECONDS = 60
LEASE_SECONDS = 30
"""For which an engine keeps blocks that are not fetched, unless told otherwise."""

HTTP = httpx2.Client(
    timeout=PATIENCE_SECONDS,
    trust_env=False,
    limits=httpx2.Limits(max_keepalive_connections=0),
)
"""Asks engines and gateways, each time on a connection of its own. Five seconds, a client's default,
are too few: one of many processes on a busy machine may need longer."""

READY = r"engine ready (http://\S+) role=(\S+) protocol=(\S+)(?: kv=(\S+))?"


@dataclass(frozen=True)
class Engine:
    url: str
    kv: str
    process: Child = field(compare=False)

    def metric(self, name: str, **labels: str) -> float:
        """The sum over all series that have these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = HTTP.get(f"{self.url}/metrics").text.splitlines()
        series = [line for line in lines if re.match(rf"{re.escape(name)}[ {{]", line)]
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in series if all(w in line for w in wanted)
        )

    def keeps_nothing(self) -> None:
        """It comes to that before a lease would let the blocks go. A caller has its answer first: the other
        engine's word that it has the blocks is not waited for."""
        wait_until(
            lambda: self.metric("pdgate_engine_blocks_kept") == 0,
            "no kept block",
            LEASE_SECONDS - 10,
        )


@dataclass(frozen=True)
class Pair:
    protocol: str
    prefill: Engine
    decode: Engine


@dataclass(frozen=True)
class Route:
    """One way through a gateway: a row of the matrix."""

    protocol: str
    mode: str
    generation: str = ""

    def __str__(self) -> str:
        return "-".join(filter(None, (self.protocol, self.generation, self.mode)))


@dataclass(frozen=True)
class Gateway:
    url: str
    process: Child = field(compare=False)

    def openai(self) -> OpenAI:
        return client(self.url)

    def ready(self) -> dict[str, object]:
        said: dict[str, object] = HTTP.get(f"{self.url}/ready").json()
        return said

    def record(self, call_id: str) -> dict[str, object]:
        """What is known of a call once it is over, which may be after its client has all of the answer:
        in batch mode prefill answers too."""

        def found() -> dict[str, Any]:
            record: dict[str, Any] = HTTP.get(f"{self.url}/debug/calls/{call_id}").json()
            return {} if record["outcome"] == "running" else record

        return wait_until(found, f"the end of call {call_id}")


@cache
def client(url: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


class Fleet:
    def __init__(self, running: ExitStack, python: str) -> None:
        self._running = running
        self._pdgate = [python, "-m", "pdgate"]
        self._single: Engine | None = None
        self._pairs: dict[tuple[str, str], Pair] = {}

    def single(self) -> Engine:
        if self._single is None:
            self._single = self.engine("plain", "plain", "shm")
        return self._single

    def pair(self, protocol: str, transfer: str) -> Pair:
        key = (protocol, transfer)
        if key not in self._pairs:
            prefill = self.engine("prefill", protocol, transfer)
            self._pairs[key] = Pair(protocol, prefill, self.engine("decode", protocol, transfer))
        return self._pairs[key]

    @contextmanager
    def gateway(self, pair: Pair, route: Route, *more: str) -> Iterator[Gateway]:
        flags = [*more, "--pdd-protocol", route.protocol, "--scheduling-mode", route.mode]
        if route.generation:
            flags += ["--mooncake-generation", route.generation]
        with self.serve(
            *flags,
            *("--instance", f"role=prefill,url={pair.prefill.url},kv={pair.prefill.kv}"),
            *("--decode", pair.decode.url),
        ) as gateway:
            yield gateway

    def engine(self, role: str, protocol: str, transfer: str, *flags: str) -> Engine:
        """Runs until the session ends."""
        words = ("engine", "--port", "0", "--role", role)
        more = ("--pdd-protocol", protocol, "--transfer", transfer, *flags)
        running = child([*self._pdgate, *words, *more], name=f"{role}-{protocol}")
        process = self._running.enter_context(running)
        ready = process.wait_for_line(READY, START_SECONDS)
        return Engine(ready[1], ready[4] or "", process)

    @contextmanager
    def serve(self, *flags: str) -> Iterator[Gateway]:
        """A gateway on a free port, once it is ready for calls."""
        words = ("serve", "--port", "0", "--debug-routes", *flags)
        with child([*self._pdgate, *words], name="gateway") as process:
            url = process.wait_for_line(r"pdgate listens on (http://\S+)", START_SECONDS)[1]
            process.wait_for_http(f"{url}/ready", START_SECONDS)
            yield Gateway(url, process)
