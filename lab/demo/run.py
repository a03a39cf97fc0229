"""Run of the demo: start, ask, tell, keep serving, leave nothing behind."""

import asyncio
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import monotonic
from typing import Self

import httpx2
from openai import OpenAIError
from rich.console import Console

from pdgate.lab.demo.ask import QUESTION, ask
from pdgate.lab.demo.plan import DemoPlan
from pdgate.lab.demo.story import KV_BYTES, STEPS, counter, curl, told, was_handed_over
from pdgate.lab.processes import START_SECONDS, ProcessFailed, Program, own_redis, stopped_together

READY = "pdgate engine ready "
LISTENS = "pdgate listens on "
POLL_SECONDS = 0.05
RANDOM_WEIGHTS = (
    "\nThe built-in model has random weights: its words mean nothing, but a KV cache that went\n"
    "astray would change them. With --model PATH a real one answers."
)

_program = partial(Program, grace_seconds=5.0)


class DemoFailed(Exception):
    """The show cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class DemoEngine:
    """A reference engine that is ready.

    Attributes:
        kv: "host:port" of its KV side, for the protocols that name it to the peer.
    """

    id: str
    role: str
    url: str
    kv: str

    @classmethod
    def from_line(cls, id: str, line: str) -> Self:
        """Reads "pdgate engine ready http://h:p role=... protocol=... kv=h:p"."""
        url, *said = line.removeprefix(READY).split()
        fields = dict(word.split("=", 1) for word in said)
        return cls(id, fields["role"], url, fields["kv"])

    def as_flag(self) -> str:
        return f"id={self.id},role={self.role},url={self.url},kv={self.kv}"


class Screen:
    """Progress: a spinner and a tick on a terminal, plain lines in a file or a pipe."""

    def __init__(self, *, stderr: bool = False) -> None:
        # A log wants whole lines and no colours; both follow from what the stream is.
        self._console = Console(soft_wrap=True, highlight=False, stderr=stderr)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Shows that `what` is under way, and how long it took once it is done."""
        began = monotonic()
        with self._console.status(f"{what} ..."):
            yield
        self.line(f"[green]ok[/green]  {what} ({monotonic() - began:.1f} s)")

    def line(self, text: str = "") -> None:
        """One line; square brackets are rich's markup."""
        self._console.print(text)

    def verbatim(self, text: str) -> None:
        """One line of another program's words, brackets and all."""
        self._console.print(text, markup=False)

    def piece(self, text: str) -> None:
        """A part of a line, at once."""
        self._console.print(text, end="", markup=False)
        self._console.file.flush()


def run(plan: DemoPlan) -> int:
    """The exit code: 0 also when it was stopped, 1 when something failed."""
    try:
        asyncio.run(_until_told_to_stop(plan, Screen(stderr=plan.as_json)))
    except* (DemoFailed, ProcessFailed, OpenAIError, httpx2.HTTPError) as group:
        for error in _leaves(group):
            print(f"pdgate demo: {str(error) or type(error).__name__}", file=sys.stderr)
    else:
        return 0
    return 1


async def _until_told_to_stop(plan: DemoPlan, screen: Screen) -> None:
    """SIGINT and SIGTERM end the show in order; a second one does not disturb that."""
    loop = asyncio.get_running_loop()
    show = asyncio.create_task(_show(plan, screen))
    told_to_stop = asyncio.Event()

    def stop() -> None:
        if not told_to_stop.is_set():
            told_to_stop.set()
            show.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    await asyncio.wait((show,))
    if show.cancelled():
        screen.line("\nstopped")
    else:
        show.result()


async def _show(plan: DemoPlan, screen: Screen) -> None:
    # In the order in which they may be missed: what is started last ends first.
    async with (
        stopped_together() as below,
        stopped_together() as behind,
        stopped_together() as front,
    ):
        if plan.needs_queue and not plan.queue:
            url, command = own_redis()
            with screen.step("prefill queue: a Redis"):
                below.append(_program(command, name="redis"))
                await below[0].launch()
            plan = replace(plan, queue=url)
        with screen.step(f"engines: {plan.prefills} prefill, {plan.decodes} decode"):
            engines = await _start_engines(plan, behind)
        # Everything is on this machine, so no proxy of the environment's may come between.
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=START_SECONDS) as http,
            asyncio.TaskGroup() as watch,
        ):
            with screen.step("gateway"):
                command = plan.gateway_command([engine.as_flag() for engine in engines])
                gateway = _program(command, LISTENS, name="gateway")
                front.append(gateway)
                await gateway.start()
                base_url = gateway.ready_line.removeprefix(LISTENS)
                await gateway.unless_it_ends(_ready(http, base_url))
            deaths = [watch.create_task(one.ended()) for one in (*below, *behind, *front)]
            model = await _question(plan, http, base_url, engines, screen)
            if plan.model is None:
                screen.line(RANDOM_WEIGHTS)
            if not plan.once:
                screen.line("\nTry it:")
                screen.verbatim(curl(base_url, model, QUESTION))
                screen.line("\nServing until Ctrl-C.")
                await asyncio.wait(deaths, return_when=asyncio.FIRST_COMPLETED)
            for death in deaths:
                death.cancel()


async def _start_engines(plan: DemoPlan, programs: list[Program]) -> list[DemoEngine]:
    """All at once."""
    roles = [
        *(("prefill", number) for number in range(plan.prefills)),
        *(("decode", number) for number in range(plan.decodes)),
    ]
    for role, number in roles:
        programs.append(_program(plan.engine_command(role), READY, name=f"{role}-{number}"))
        await programs[-1].launch()
    return [DemoEngine.from_line(one.name, (await one.ready()).string) for one in programs]


async def _ready(http: httpx2.AsyncClient, base_url: str) -> None:
    """Waits until the gateway has a healthy engine of each role."""
    # It is another process, so there is no event to wait for.
    while not await _says_ready(http, base_url):  # noqa: ASYNC110
        await asyncio.sleep(POLL_SECONDS)


async def _says_ready(http: httpx2.AsyncClient, base_url: str) -> bool:
    try:
        return (await http.get(f"{base_url}/ready")).status_code == httpx2.codes.OK
    except httpx2.ConnectError:
        # It says where it listens before it accepts.
        return False


async def _question(
    plan: DemoPlan,
    http: httpx2.AsyncClient,
    base_url: str,
    engines: Sequence[DemoEngine],
    screen: Screen,
) -> str:
    """Asks, shows what happened, and returns the model that answered."""
    before = await _metrics(http, engines)
    screen.line()
    screen.verbatim(f"  > {QUESTION}")
    screen.piece("  ")
    answered = await ask(base_url, screen.piece)
    screen.line("\n")
    after = await _metrics(http, engines)
    moved = sum(_grown(before[id], after[id], KV_BYTES) for id in after)
    worked = [id for id in after if _grown(before[id], after[id], STEPS)]
    found = await http.get(f"{base_url}/debug/calls/{answered.request_id}")
    found.raise_for_status()
    call = found.json()
    for line in told(call, moved, worked):
        screen.verbatim(line)
    if plan.as_json:
        everything = {
            "gateway": base_url,
            "engines": [asdict(engine) for engine in engines],
            "question": QUESTION,
            **asdict(answered),
            "kv_bytes": moved,
            "worked": worked,
            "call": call,
        }
        print(json.dumps(everything), flush=True)
    if not was_handed_over(call):
        raise DemoFailed(f"the call was answered ({call['path']}), but no KV was handed over")
    if not moved:
        raise DemoFailed("KV was handed over, says the gateway, but no engine received any")
    return answered.model


async def _metrics(http: httpx2.AsyncClient, engines: Sequence[DemoEngine]) -> dict[str, str]:
    """Engine id -> its metrics page."""
    return {engine.id: (await http.get(f"{engine.url}/metrics")).text for engine in engines}


def _grown(before: str, after: str, name: str) -> int:
    return counter(after, name) - counter(before, name)


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in a group of groups."""
    found: list[BaseException] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
