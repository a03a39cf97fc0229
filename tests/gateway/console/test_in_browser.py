"""What operators see and press, in a real browser, in front of a real gateway.

The gateway runs in the test's event loop; the browser is driven from a thread.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pdgate.protocols.instance import Role
from tests.gateway.console.watching import KNOWN, TOKEN, gateway_with_console
from tests.support.fleet import (
    LAST_CHUNK,
    PREFILLED,
    STREAM_HEAD,
    Engine,
    Gateway,
    Held,
    as_json,
)
from tests.support.raw_server import chunk

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

# The wheel is tested without a browser, and without what drives one.
pytestmark = pytest.mark.slow

EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}\n\n'
MARKUP = "<script>window.broken=1</script><img src=x onerror=window.broken=2>"
POLL_SECONDS = 0.02


@pytest.fixture(scope="module")
def chrome() -> Iterator["Chrome"]:
    from tests.gateway.console.browser import browser, missing

    if why_not := missing():
        if os.environ.get("CI") == "true":
            pytest.fail(why_not)
        pytest.skip(why_not)
    with browser() as driver:
        yield driver


class Page:
    """What a person does; each answers when the page has."""

    def __init__(self, chrome: "Chrome", url: str) -> None:
        self._chrome = chrome
        self.url = url

    async def script(self, source: str, *words: Any) -> Any:
        return await asyncio.to_thread(self._chrome.execute_script, source, *words)

    async def until(self, source: str, *words: Any) -> Any:
        """The first value of the expression that is true."""
        from tests.gateway.console.browser import PATIENCE_SECONDS

        found = None
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                # It is another process, so there is no event to wait for.
                while not (found := await self.script(f"return {source}", *words)):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            seen = await self.script("return document.body.innerText")
            raise AssertionError(f"in vain: {source}\nThe page shows:\n{seen}") from None
        return found

    async def open(self) -> None:
        await asyncio.to_thread(self._chrome.get, f"{self.url}/console")
        await self.script("sessionStorage.clear()")
        await asyncio.to_thread(self._chrome.get, f"{self.url}/console/")
        await self.until("!document.getElementById('door').hidden")

    async def say(self, token: str) -> None:
        await self.type("#token", token)
        await self.click("#ask button")

    async def enter(self) -> None:
        await self.open()
        await self.say(TOKEN)
        await self.until("!document.getElementById('board').hidden")

    async def click(self, selector: str) -> None:
        await asyncio.to_thread(self._found(selector).click)

    async def type(self, selector: str, words: str) -> None:
        element = self._found(selector)
        await asyncio.to_thread(element.clear)
        await asyncio.to_thread(element.send_keys, words)

    async def press(self, keys: str) -> None:
        """Wherever the focus is."""
        await asyncio.to_thread(self._chrome.switch_to.active_element.send_keys, keys)

    async def size(self, width: int, height: int) -> None:
        from tests.gateway.console.browser import size

        await asyncio.to_thread(size, self._chrome, width, height)

    def _found(self, selector: str) -> Any:
        return self._chrome.find_element("css selector", selector)

    def complaints(self) -> list[str]:
        from tests.gateway.console.browser import complaints

        return complaints(self._chrome)


@pytest.fixture
def reading() -> Held:
    return Held()


@pytest.fixture
def answering() -> Held:
    return Held()


@pytest.fixture
async def gateway(tmp_path: Path, reading: Held, answering: Held) -> AsyncIterator[Gateway]:
    decodes = Engine(Role.DECODE, answering), Engine(Role.DECODE, answering)
    prefill = Engine(Role.PREFILL, reading)
    prefill.entry = {"id": MARKUP}
    async with gateway_with_console(
        tmp_path, prefill, *decodes, decode_policy="round_robin"
    ) as gateway:
        yield gateway


@pytest.fixture
async def page(chrome: "Chrome", gateway: Gateway) -> AsyncIterator[Page]:
    page = Page(chrome, f"http://127.0.0.1:{gateway.port}")
    yield page
    # It holds a connection, and the gateway would wait for that.
    await asyncio.to_thread(chrome.get, "about:blank")
    assert page.complaints() == []


async def test_who_has_a_wrong_token_is_told_and_sees_nothing(chrome: "Chrome", page: Page) -> None:
    await page.open()
    await page.say("no-token-of-anybody")

    assert "not this gateway's" in await page.until("document.getElementById('refused').innerText")
    assert await page.script("return document.getElementById('board').hidden")
    assert await page.script("return sessionStorage.length") == 0
    # A 401 is written to the browser's own log, as it should be.
    assert all("401" in line for line in page.complaints())


async def test_cards_stand_where_their_engines_serve_and_names_are_only_text(page: Page) -> None:
    """Ids come from configurations and directories."""
    await page.enter()

    names = "[...document.querySelectorAll('#%s .id')].map((one) => one.textContent)"
    assert await page.until(names % "prefill") == [MARKUP]
    assert await page.until(names % "decode") == ["decode-0", "decode-1"]
    assert (
        await page.script("return document.querySelectorAll('.card script, .card img').length") == 0
    )
    assert await page.script("return window.broken") is None


async def test_a_call_is_seen_crossing_and_afterwards_why_it_went_there(
    page: Page, gateway: Gateway, reading: Held, answering: Held
) -> None:
    phase = "document.querySelector('#crossing circle[data-call=mine]')?.dataset.phase === '%s'"
    await page.enter()
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(gateway.chat({"x-request-id": "mine"}, stream=True))
        prefill = await reading.next()
        await page.until(phase % "prefill")
        assert "1 reading" in await page.until("document.getElementById('flow').innerText")
        await prefill.peer.send(as_json(PREFILLED))
        decode = await answering.next()
        await page.until(phase % "crossing")
        # It moves, and is between the two of them.
        at = "+document.querySelector('#crossing circle[data-call=mine]').getAttribute('cx')"
        first = await page.script(f"return {at}")
        await page.until(f"{at} !== arguments[0]", first)
        await page.until("document.querySelector('#edges path')?.getAttribute('d')")
        await decode.peer.send(STREAM_HEAD, chunk(EVENT))
        await page.until(phase % "answering")
        await decode.peer.send(chunk(b"data: [DONE]\n\n"), LAST_CHUNK)
        assert (await asking).status_code == 200

    row = "document.querySelector('#calls tr[data-call=mine]')"
    await page.until(f"{row}?.innerText.includes('ok')")
    way = await page.script(f"return {row}.querySelector('.way').innerText")
    prefill_id, _, decode_id = way.partition("→")
    assert (prefill_id, decode_id[:7]) == (MARKUP, "decode-")
    await page.until("document.querySelector('#ttft .line')")

    # By keyboard alone.
    await page.script(f"{row}.querySelector('button').focus()")
    await page.press("\ue007")
    story = await page.until(
        "document.getElementById('why').open && document.getElementById('story').innerText"
    )
    assert f"{decode_id} answered. Its KV was handed over. It went well." in story
    assert "by round_robin" in story
    await page.press("\ue00c")
    await page.until("!document.getElementById('why').open")


async def test_drain_and_undrain_are_a_press_each(page: Page, gateway: Gateway) -> None:
    async def state_of(instance_id: str) -> str:
        found = (await gateway.http.get("/admin/instances", headers=KNOWN)).json()
        return str(next(one["state"] for one in found if one["id"] == instance_id))

    card = "document.querySelector('.card[data-id=\"decode-1\"]')"
    await page.enter()
    await page.until(f"{card}?.innerText.includes('up')")
    await page.click(".card[data-id='decode-1'] button")
    await page.until(f"{card}.querySelector('.pill').innerText === 'drained'")
    assert await state_of("decode-1") == "drained"

    await page.until(f"{card}.querySelector('button').innerText === 'Undrain'")
    await page.click(".card[data-id='decode-1'] button")
    await page.until(f"{card}.querySelector('.pill').innerText === 'up'")
    assert await state_of("decode-1") == "up"


async def test_the_last_engine_of_its_side_takes_a_second_press(
    page: Page, gateway: Gateway
) -> None:
    await page.enter()
    await page.until("document.querySelector('#prefill button')?.innerText === 'Drain'")
    # It asks for five seconds, which a busy machine may take for a click: they pass when the test says so.
    await page.script(
        "const began = Date.now(); window.passed = 0; Date.now = () => began + passed"
    )
    await page.click("#prefill button")
    await page.until("document.querySelector('#prefill button').innerText.includes('sure?')")
    await page.script("passed = 5001")
    await page.until("document.querySelector('#prefill button').innerText === 'Drain'")
    await page.click("#prefill button")
    await page.until("document.querySelector('#prefill button').innerText.includes('sure?')")
    found = (await gateway.http.get("/admin/instances", headers=KNOWN)).json()
    assert [one["state"] for one in found] == ["up", "up", "up"]

    await page.click("#prefill button")
    await page.until("document.querySelector('#prefill .pill').innerText === 'drained'")


async def test_it_fits_a_telephone_and_a_large_screen(page: Page) -> None:
    await page.enter()
    await page.until("document.querySelectorAll('.card').length === 3")
    for width in (1600, 400):
        await page.size(width, 900)
        await page.until("innerWidth === arguments[0]", width)
        assert await page.script("return document.documentElement.scrollWidth") <= width
        sides = "['prefill', 'decode'].map((side) => document.getElementById(side).getBoundingClientRect())"
        left, right = await page.script(f"return {sides}.map((box) => [box.left, box.right])")
        assert 0 <= left[0] < left[1] < right[0] < right[1] <= width


async def test_a_gateway_that_is_away_is_said_and_found_again(
    page: Page, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pdgate.gateway.console.snapshots import Snapshots

    line = "document.getElementById('line').innerText"
    latest: Callable[[Snapshots], Any] = Snapshots.latest

    async def fails(_: Snapshots) -> bytes:
        raise ConnectionError("gone")

    await page.enter()
    await page.until(f"{line} === 'live'")
    monkeypatch.setattr(Snapshots, "latest", fails)
    assert "gateway is" in await page.until(f"{line} !== 'live' && {line}")
    assert not await page.script("return document.getElementById('board').hidden")
    monkeypatch.setattr(Snapshots, "latest", latest)
    await page.until(f"{line} === 'live'")
    # The browser logs the broken answer; nothing else.
    assert all("ERR_" in complaint or "500" in complaint for complaint in page.complaints())
