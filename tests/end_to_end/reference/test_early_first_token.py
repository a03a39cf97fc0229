"""`--early-first-token` over real processes: the client has prefill's token before decode has said anything.

Decode has one place, which a long answer holds: until that is over, it neither loads the KV nor sends a head.
"""

import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from openai import APIError

from tests.end_to_end.reference.callers import ask
from tests.end_to_end.reference.fleet import Fleet, Gateway, Pair, Route
from tests.end_to_end.reference.test_same_tokens import PROMPTS, said
from tests.support.waiting import wait_until

PROMPT = PROMPTS["many blocks"]
ROUTES = [Route("vllm-nixl", "batch"), Route("vllm-mooncake", "batch", "d")]


@pytest.fixture(scope="module", params=ROUTES, ids=str)
def slow(request: pytest.FixtureRequest) -> Iterator[tuple[Gateway, Pair]]:
    route: Route = request.param
    with ExitStack() as running:
        own = Fleet(running, sys.executable)
        prefill = own.engine("prefill", route.protocol, "tcp")
        one = ("--max-num-seqs", "1", "--min-itl-ms", "50")
        pair = Pair(route.protocol, prefill, own.engine("decode", route.protocol, "tcp", *one))
        with own.gateway(pair, route, "--early-first-token") as gateway:
            yield gateway, pair


@pytest.mark.parametrize("chat", [False, True], ids=["completions", "chat"])
def test_the_token_is_there_while_decode_has_no_place(
    slow: tuple[Gateway, Pair], fleet: Fleet, chat: bool
) -> None:
    gateway, pair = slow
    decode, api = pair.decode, gateway.openai()
    with ThreadPoolExecutor(1) as beside:
        busy = beside.submit(ask, Gateway(decode.url, decode.process), PROMPT, 120)
        wait_until(lambda: decode.metric("vllm:num_requests_running") == 1, "a full batch")
        asked: dict[str, Any] = {"model": "pdgate-tiny", "max_tokens": 4, "temperature": 0}
        asked |= {"stream": True, "extra_body": {"min_tokens": 1}}
        create: Any = api.chat.completions.create if chat else api.completions.create
        prompt = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}

        text, ids, early = "", set(), False
        with create(**prompt, **asked) as events:
            for event in events:
                ids.add(event.id)
                choice = event.choices[0]
                text += (choice.delta.content or "") if chat else choice.text
                if text and not early:
                    early = True
                    assert not busy.done()

        assert text.startswith(said(fleet.single().url, PROMPT, chat, True)[0][: len(text)])
        assert text
        assert early
        assert len(ids) == 1
        assert busy.result()


def test_a_decode_that_dies_behind_the_token_ends_the_call_with_an_error(
    slow: tuple[Gateway, Pair],
) -> None:
    """Without the flag another engine would have been asked: nothing is out by then."""
    gateway, pair = slow
    decode = pair.decode
    with ThreadPoolExecutor(1) as beside:
        busy = beside.submit(ask, Gateway(decode.url, decode.process), PROMPT, 120)
        wait_until(lambda: decode.metric("vllm:num_requests_running") == 1, "a full batch")
        events = gateway.openai().completions.create(
            model="pdgate-tiny",
            prompt=PROMPT,
            max_tokens=4,
            temperature=0,
            stream=True,
            extra_body={"min_tokens": 1},
        )
        first = next(iter(events))
        assert first.choices[0].text

        decode.process.signal(signal.SIGKILL)

        with pytest.raises(APIError):
            list(events)
        assert busy.exception() is not None
