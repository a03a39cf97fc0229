"""Makes the pictures of the console and of `pdgate top`, of a gateway that people use.

    python -m tests.gateway.console.pictures [--seconds 150]

Engines are reference engines of given speeds (busy_site.py); all else is as it would be.
"""

import argparse
import asyncio
import io
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from selenium.webdriver.support.ui import WebDriverWait

from pdgate.operations.top.view import TopView
from pdgate.operations.top.watching import once, shown
from tests.docs.pages import DOCS
from tests.gateway.console.browser import browser, complaints, size
from tests.gateway.console.busy_site import TOKEN, Site, busy_site, callers

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

FOLDER = DOCS / "images"
CALLERS = 16
SETTLED_SECONDS = 2.5
"""Until a page of another size has drawn itself, and calls have moved on."""
CALM_SECONDS = 45.0


async def main(seconds: float) -> None:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, busy_site(Path(folder)) as site:
        async with callers(site, CALLERS):
            await asyncio.sleep(seconds)
            await draw_top(site)
            # In a thread, as callers go on meanwhile.
            await asyncio.to_thread(draw_console, site)


async def draw_top(site: Site) -> None:
    console = Console(
        file=io.StringIO(), width=132, height=36, record=True, color_system="truecolor"
    )
    view = TopView("http://gateway:8000")
    shown(view, await once(site.url, TOKEN))
    console.print(view, height=console.height)
    console.save_svg(str(FOLDER / "top.svg"), title="pdgate top")
    print(FOLDER / "top.svg")


def draw_console(site: Site) -> None:
    with browser() as light, browser(dark=True) as dark:
        for driver in (light, dark):
            driver.get(f"{site.url}/console/")
            driver.find_element("id", "token").send_keys(TOKEN)
            driver.find_element("css selector", "#ask button").click()
        # To start two browsers takes all of a small machine, and engines are slow meanwhile.
        time.sleep(CALM_SECONDS)
        size(light, 1600, 1240)
        until_one_crosses(light)
        photograph(light, "console", 1600, 1240, settled_seconds=0)
        photograph(dark, "console-narrow", 400, 1330)
        size(dark, 1600, 1060)
        time.sleep(SETTLED_SECONDS)
        # One that is over, so that its story is whole.
        dark.execute_script(
            "[...document.querySelectorAll('#calls tr:has(td.ok)')].at(-1).querySelector('button').click()"
        )
        photograph(dark, "console-why", 1600, 1060)
        for driver in (light, dark):
            if said := complaints(driver):
                raise SystemExit(f"the page complains: {said}")


def until_one_crosses(driver: "Chrome") -> None:
    """What the picture is to show lasts a tenth of a second or so."""
    time.sleep(SETTLED_SECONDS)
    seen = "return document.querySelector('#crossing circle[data-phase=crossing]') !== null"
    WebDriverWait(driver, CALM_SECONDS, 0.05).until(lambda _: driver.execute_script(seen))


def photograph(
    driver: "Chrome",
    name: str,
    width: int,
    height: int,
    settled_seconds: float = SETTLED_SECONDS,
) -> None:
    size(driver, width, height)
    time.sleep(settled_seconds)
    driver.save_screenshot(str(FOLDER / f"{name}.png"))
    print(FOLDER / f"{name}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=150.0, help="of traffic before")
    asyncio.run(main(parser.parse_args().seconds))
