"""Terminals of operators: what engines and strangers say tells them nothing, and breaks no page.

Reasons are engines' own words, names a directory's, and what a model answers may look like markup: Llama's
templates have [/INST].
"""

from typing import Any

import pytest
from rich.console import Console

from pdgate.lab.conformance.check import Check, Result, Verdict
from pdgate.lab.conformance.report import Report
from pdgate.operations.doctor import report
from pdgate.operations.doctor.checks import CHECKS, Finding
from pdgate.operations.doctor.seen import Examined, Probes
from pdgate.operations.top.feed import Away
from pdgate.operations.top.view import TopView
from pdgate.operations.top.watching import shown
from pdgate.protocols.instance import Role
from tests.operations.explain.test_explain import explain
from tests.operations.top.a_picture import call, engine, picture
from tests.support.fleet import Engine, as_json, gateway_of

SAYS = {
    "\x1b]0;owned\x07": "]0;owned",
    "\x9b2J": "u009b2J",
    "a\u202eb": "u202eb",
    "[/INST]": "[/INST]",
    "[bold": "[bold",
}
"""What is said -> what is to be seen of it."""


def harmless(page: str) -> bool:
    return all(one.isprintable() or one == "\n" for one in page)


def printed(*pages: Any) -> str:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        for page in pages:
            console.print(page)
    return capture.get()


@pytest.mark.parametrize("said", SAYS)
def test_top(said: str) -> None:
    one = engine(said, "prefill", hint=said, models=[said])
    missing = [{"role": "decode", "why": said}]
    calls = {"running": [call(said, "crossing")], "ended": [call(said, "over", prefill=said)]}
    view = TopView("http://gateway:8000")
    shown(view, picture(instances=[one], calls=calls, missing=missing, ready=False))
    page = printed(view)
    shown(view, Away(said))

    assert harmless(page + printed(view))
    assert SAYS[said] in page


@pytest.mark.parametrize("said", SAYS)
def test_doctor(said: str) -> None:
    console = Console(width=200, color_system=None)
    with console.capture() as capture:
        report.show(console, Examined((), Probes()), [Finding(CHECKS[0], (said,), said)])

    assert harmless(capture.get())
    assert capture.get().count(SAYS[said]) >= 2


@pytest.mark.parametrize("said", SAYS)
def test_conformance(said: str) -> None:
    async def run(_: object) -> None: ...

    failed = Result(
        Check("a", "it answers", run), Verdict.FAIL, f"it said {said}\nand no more", 1.0
    )
    page = printed(Report("p", "batch", "", [failed]).table())

    assert harmless(page)
    assert SAYS[said] in page
    assert "and no more" in page


async def test_explain() -> None:
    """Of a gateway whose record and whose refusal say such things."""
    async with gateway_of(other := Engine(Role.PLAIN), debug_routes=True) as gateway:
        await gateway.chat({"x-request-id": "mine"})
        record = (await gateway.http.get("/debug/calls/mine")).json()
        other.probes["/debug/calls/mine"] = as_json({**record, "model": "m\x1b[2J\n"})
        refusal = {"error": {"message": "no recent call\x9b2J"}}
        other.probes["/debug/calls/other"] = as_json(refusal, b"503 Service Unavailable")
        told = await explain("mine", "--gateway", other.url)
        refused = await explain("other", "--gateway", other.url)

    assert told.exit_code == 0, told.output
    assert harmless(told.stdout)
    assert "m\\u001b[2J\\n" in told.stdout
    assert refused.exit_code == 1
    assert harmless(refused.output)
    assert "\\u009b2J" in refused.output
