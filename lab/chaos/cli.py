"""The `chaos` command: one proxy with one plan, until it is stopped."""

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pdgate.lab.chaos.settings import BadSettings, ChaosSettings, load

WHERE, WHAT, WHEN = "Where", "What goes wrong", "When"


def _option(panel: str, help: str, default: str = "") -> Any:
    return typer.Option(help=help, rich_help_panel=panel, show_default=default or False)


def chaos(
    config: Annotated[
        Path | None, _option(WHERE, "TOML file with several faults; flags go over it.")
    ] = None,
    listen: Annotated[
        str | None, _option(WHERE, "host:port for the gateway to call.", "127.0.0.1:9000")
    ] = None,
    engine: Annotated[str | None, _option(WHERE, "http://host:port of the engine.")] = None,
    fault: Annotated[
        Literal["refuse", "delay", "cut", "stall", "corrupt", "slow_reader", "half_open"] | None,
        _option(WHAT, "One fault; several go into a file."),
    ] = None,
    after_bytes: Annotated[
        int | None, _option(WHAT, "Of the answer: cut, stall, corrupt, half_open.", "0")
    ] = None,
    seconds: Annotated[float | None, _option(WHAT, "Of a delay.")] = None,
    bytes_per_second: Annotated[int | None, _option(WHAT, "Of a slow_reader.")] = None,
    reset: Annotated[bool | None, typer.Option("--reset", help="Cut by RST.")] = None,
    every: Annotated[int | None, _option(WHEN, "Each n-th one.", "1")] = None,
    chance: Annotated[float | None, _option(WHEN, "Share of those, 0..1.", "1")] = None,
    first: Annotated[int | None, _option(WHEN, "Not before this one.", "1")] = None,
    last: Annotated[int | None, _option(WHEN, "Not after this one.")] = None,
    seed: Annotated[int | None, _option(WHEN, "The same one draws the same.", "0")] = None,
    per: Annotated[
        Literal["request", "connection"] | None, _option(WHEN, "What is counted.", "request")
    ] = None,
    only: Annotated[
        str | None,
        _option(WHEN, "What begins so is counted; '' is all, health checks too.", "'POST '"),
    ] = None,
) -> None:
    """Put faults between a gateway and an engine.

    A line on stderr for each fault; at the end, how many there were, as JSON on stdout.
    """
    where = {"listen": listen, "engine": engine, "seed": seed, "only": only, "per": per}
    what = {
        "after_bytes": after_bytes,
        "seconds": seconds,
        "bytes_per_second": bytes_per_second,
        "reset": reset,
        "every": every,
        "chance": chance,
        "first": first,
        "last": last,
    }
    try:
        entry = _given(what)
        if entry and fault is None:
            raise BadSettings(f"--{next(iter(entry)).replace('_', '-')} needs --fault")
        faults = [{"fault": fault, **entry}] if fault else []
        settings = load(config, _given(where), faults)
        asyncio.run(_disturb(settings))
    except BadSettings as error:
        typer.echo(f"pdgate chaos: {error}", err=True)
        raise typer.Exit(2) from None


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


async def _disturb(settings: ChaosSettings) -> None:
    """Raises BadSettings if the address cannot be had."""
    # Here, as help needs none of it.
    from pdgate.lab.chaos.proxy import FaultProxy

    told_to_stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    proxy = FaultProxy(
        settings.engine,
        host=settings.host,
        port=settings.port,
        plan=settings.plan(),
        tell=_say,
    )
    async with AsyncExitStack() as listening:
        try:
            await listening.enter_async_context(proxy)
        except OSError as error:
            raise BadSettings(f"cannot listen on {settings.listen}: {error.strerror}") from None
        _say(f"pdgate chaos listens on {proxy.url}")
        await told_to_stop.wait()
    summary = {"engine": settings.engine, "seed": settings.seed, **proxy.journal.as_json()}
    typer.echo(json.dumps(summary))


def _say(line: str) -> None:
    typer.echo(line, err=True)
