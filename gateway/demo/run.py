"""The show: start, ask, tell, keep serving, leave nothing behind."""

import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self, TypeVar

import httpx2
from openai import OpenAIError

from pdgate.gateway.demo import queue
from pdgate.gateway.demo.ask import QUESTION, ask
from pdgate.gateway.demo.children import Child, ChildDied, Children
from pdgate.gateway.demo.plan import Plan
from pdgate.gateway.demo.screen import Screen
from pdgate.gateway.demo.story import KV_BYTES, STEPS, counter, curl, told, was_handed_over

READY = "pdgate engine ready "
LISTENS = "pdgate listens on "
START_SECONDS = 60.0
POLL_SECONDS = 0.05
RANDOM_WEIGHTS = (
    "\nThe built-in model has random weights: its words mean nothing, but a KV cache that went\n"
    "astray would change them. With --model PATH a real one answers."
)

T = TypeVar("T")


class DemoFailed(Exception):
    """The show cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Engine:
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


def run(plan: Plan) -> int:
    """The exit code: 0 also when it was told to stop, 1 when something failed."""
    try:
        asyncio.run(_until_told_to_stop(plan, Screen(stderr=plan.as_json)))
    except* (DemoFailed, ChildDied, OpenAIError, httpx2.HTTPError) as group:
        for error in _leaves(group):
            print(f"pdgate demo: {error}", file=sys.stderr)
    else:
        return 0
    return 1


async def _until_told_to_stop(plan: Plan, screen: Screen) -> None:
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


async def _show(plan: Plan, screen: Screen) -> None:
    # In the order in which they may be missed: who is started last ends first.
    async with Children() as below, Children() as engine_children, Children() as front:
        if plan.needs_queue and not plan.queue:
            url, command = queue.own()
            with screen.step("prefill queue: a Redis"):
                await below.start("redis", command)
            plan = replace(plan, queue=url)
        with screen.step(f"engines: {plan.prefills} prefill, {plan.decodes} decode"):
            engines = await _start_engines(plan, engine_children)
        # Everything is on this machine, so no proxy of the environment's may come between.
        async with httpx2.AsyncClient(trust_env=False) as http, asyncio.TaskGroup() as watch:
            with screen.step("gateway"):
                command = plan.gateway_command([engine.as_flag() for engine in engines])
                gateway = await front.start("gateway", command, LISTENS)
                line = await _unless_dead(gateway, gateway.ready)
                base_url = line.removeprefix(LISTENS)
                await _unless_dead(gateway, _ready(http, base_url))
            everybody = (below, engine_children, front)
            deaths = [watch.create_task(one.any_ended()) for one in everybody if one.any]
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


async def _start_engines(plan: Plan, children: Children) -> list[Engine]:
    """All at once."""
    roles = [
        *(("prefill", number) for number in range(plan.prefills)),
        *(("decode", number) for number in range(plan.decodes)),
    ]
    started = [
        await children.start(f"{role}-{number}", plan.engine_command(role), READY)
        for role, number in roles
    ]
    return [
        Engine.from_line(child.name, await _unless_dead(child, child.ready)) for child in started
    ]


async def _unless_dead(child: Child, awaited: Awaitable[T]) -> T:
    """What `awaited` gives. Raises ChildDied if the child ends first, DemoFailed if it is slow."""
    hoped = asyncio.ensure_future(awaited)
    feared = asyncio.create_task(child.ended())
    try:
        done, _ = await asyncio.wait(
            (hoped, feared), timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        if hoped in done:
            return hoped.result()
        if feared in done:
            feared.result()
        raise DemoFailed(f"{child.name} was not ready after {START_SECONDS:.0f} s")
    finally:
        hoped.cancel()
        feared.cancel()


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
    plan: Plan,
    http: httpx2.AsyncClient,
    base_url: str,
    engines: Sequence[Engine],
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


async def _metrics(http: httpx2.AsyncClient, engines: Sequence[Engine]) -> dict[str, str]:
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
