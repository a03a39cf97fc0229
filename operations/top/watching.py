"""Watching: pictures, shown until the command ends."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from time import time

from rich.console import Console
from rich.live import Live

from pdgate.cluster.printable import all_printable, printable
from pdgate.operations.asking import GatewayAway
from pdgate.operations.top.feed import Away, Picture, pictures
from pdgate.operations.top.view import TopView


async def once(url: str, token: str) -> Picture:
    """The first picture. Raises GatewayAway, BadAsk."""
    async with aclosing(pictures(url, token)) as told:
        async for one in told:
            if isinstance(one, Away):
                raise GatewayAway(f"the gateway at {url} does not answer: {one.why}")
            return one
    raise AssertionError("pictures do not end")


async def lines(url: str, token: str, write: Callable[[str], None]) -> None:
    """A line of JSON for each picture; {"away": why} where there is none. Raises BadAsk."""
    async with aclosing(pictures(url, token)) as told:
        await _until_stopped(told, lambda one: write(json.dumps(_as_json(one))))


async def screen(url: str, token: str, console: Console) -> None:
    """The whole terminal, as large as it is at the moment. Raises BadAsk."""
    view = TopView(url)
    with Live(view, console=console, screen=True, auto_refresh=False) as live:

        def show(one: Picture | Away) -> None:
            shown(view, one)
            live.refresh()

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, live.refresh)
        try:
            async with aclosing(pictures(url, token)) as told:
                await _until_stopped(told, show)
        finally:
            loop.remove_signal_handler(signal.SIGWINCH)


def shown(view: TopView, one: Picture | Away) -> None:
    """The view is brought up to date."""
    view.now = time()
    if isinstance(one, Away):
        since = view.now if view.away is None else view.away[1]
        view.away = (printable(one.why), since)
    else:
        view.picture, view.away = all_printable(one), None


async def _until_stopped(
    told: AsyncIterator[Picture | Away], show: Callable[[Picture | Away], None]
) -> None:
    """SIGINT and SIGTERM end it in order."""

    async def all_of_them() -> None:
        async for one in told:
            show(one)

    loop = asyncio.get_running_loop()
    showing = asyncio.create_task(all_of_them())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, showing.cancel)
    try:
        await asyncio.wait((showing,))
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        showing.cancel()
    if not showing.cancelled():
        showing.result()


def _as_json(one: Picture | Away) -> object:
    return {"away": one.why} if isinstance(one, Away) else one
