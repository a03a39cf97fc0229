"""What the engine alone does decides what a check can say of the gateway."""

from collections.abc import Callable
from unittest.mock import Mock

import httpx2
import pytest

from pdgate.forwarders.base import Mode
from pdgate.lab.conformance.api import ApiUnderTest
from pdgate.lab.conformance.check import Verdict
from pdgate.lab.conformance.checks.answers import TOOLS
from pdgate.lab.conformance.running import judged
from pdgate.lab.conformance.site import Site

ANSWER = {
    "choices": [{"index": 0, "message": {"content": "a"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
NO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
Answers = Callable[[httpx2.Request], httpx2.Response]


def answers(_: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(200, json=ANSWER)


def refuses(_: httpx2.Request) -> httpx2.Response:
    return httpx2.Response(400, json={"error": {"message": NO_TOOLS}})


def is_gone(request: httpx2.Request) -> httpx2.Response:
    raise httpx2.ConnectError("All connection attempts failed", request=request)


async def verdict(gateway: Answers, alone: Answers) -> tuple[Verdict, str]:
    apis = {"g": gateway, "x": alone}
    transport = httpx2.MockTransport(lambda request: apis[request.url.host](request))
    async with httpx2.AsyncClient(transport=transport) as http:
        here, there = ApiUnderTest("http://g", http), ApiUnderTest("http://x", http)
        site = Site(Mock(), Mode.BATCH, here, [], [], there, "m", None)
        result = await judged(TOOLS, site)
    return result.verdict, result.reason


async def test_an_engine_alone_that_died_is_named() -> None:
    found, reason = await verdict(answers, is_gone)

    assert found is Verdict.FAIL
    assert "the engine to compare with, http://x (--alone), does not answer" in reason


async def test_a_gateway_that_died_is_named() -> None:
    found, reason = await verdict(is_gone, answers)

    assert found is Verdict.FAIL
    assert "http://g does not answer: ConnectError" in reason


async def test_what_the_engine_alone_refuses_as_well_cannot_be_asked() -> None:
    found, reason = await verdict(refuses, refuses)

    assert found is Verdict.NOT_APPLICABLE
    assert NO_TOOLS in reason


@pytest.mark.parametrize("alone", [answers, is_gone])
async def test_what_only_the_gateway_refuses_is_a_failure(alone: Answers) -> None:
    assert (await verdict(refuses, alone))[0] is Verdict.FAIL
