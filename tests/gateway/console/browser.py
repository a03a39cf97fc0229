"""Chromium without a window, as Debian has it (chromium, chromium-driver), driven by selenium.

Where it is missing its tests are skipped, and fail with CI=true.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from tests.support import waiting

PROGRAM, DRIVER = "chromium", "chromedriver"
WIDE: Final = (1600, 1000)
NARROW: Final = (400, 860)
PATIENCE_SECONDS = waiting.PATIENCE_SECONDS


def missing() -> str:
    """What is not installed; empty if nothing is."""
    lacking = [name for name in (PROGRAM, DRIVER) if shutil.which(name) is None]
    return f"no {' and '.join(lacking)}: apt-get install chromium-driver" * bool(lacking)


@contextmanager
def browser(*, dark: bool = False) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = shutil.which(PROGRAM) or PROGRAM
    options.add_argument("--headless=new")
    options.add_argument("--disable-gpu")
    options.add_argument("--hide-scrollbars")
    # What shared memory there is in a container is too little for it.
    options.add_argument("--disable-dev-shm-usage")
    # Nothing may go out to anybody but the gateway of the test.
    options.add_argument("--disable-background-networking")
    options.add_argument("--disable-component-update")
    options.add_argument("--no-first-run")
    options.add_argument("--no-proxy-server")
    if os.geteuid() == 0:
        # Its sandbox is not to be had as root; it sees nothing but our own page.
        options.add_argument("--no-sandbox")
    if dark:
        options.add_argument("--force-dark-mode")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(shutil.which(DRIVER)))
    try:
        driver.set_window_size(*WIDE)
        driver.set_page_load_timeout(PATIENCE_SECONDS)
        driver.set_script_timeout(PATIENCE_SECONDS)
        yield driver
    finally:
        driver.quit()


def size(driver: Chrome, width: int, height: int) -> None:
    """Of the page, whatever a window's frame takes."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def complaints(driver: Chrome) -> list[str]:
    """What its console says that is an error: a script's, or of the content security policy."""
    found: list[dict[str, str]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [entry["message"] for entry in found if entry["level"] == "SEVERE"]
