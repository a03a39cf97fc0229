"""ascend-layerwise: decode posts where it is, prefill calls there, and its layers are written as they are computed."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from pdgate.engine.hand_over.ascend_layerwise import PURPOSE
from pdgate.engine.prefill_worker.wire import Claim, ClaimWord, Lines, WorkerAnswer
from pdgate.engine.request import Finish, Request
from pdgate.transfer import registry
from pdgate.transfer.runtime.channel import dial
from pdgate.transfer.runtime.fleet import Identity
from tests.support.core_pairs import Side, side
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of
from tests.support.metaserver import Metaserver
from tests.support.waiting import PATIENCE_SECONDS, wait_until

TEXT = "my own prompt, which is exactly as long as the foreign one"
FOREIGN = "what someone else asked, which is as long as my own prompt"
ONE = replace(GREEDY, max_tokens=1)


class Fleet:
    def __init__(self, stack: ExitStack, **settings: Any) -> None:
        self.meta = Metaserver()
        stack.callback(self.meta.close)
        sides = []
        for role in ("prefill", "decode"):
            backend = registry.load("shm")
            stack.callback(backend.close)
            sides.append(
                side(
                    stack, role, "ascend-layerwise", backend, layout(), mover="threads", **settings
                )
            )
        self.p: Side = sides[0]
        self.d: Side = sides[1]

    def to_decode(self, id: str = "d1", text: str = TEXT) -> Request:
        params = {"do_remote_prefill": True, "metaserver": self.meta.url}
        return replace(ask(id, text, GREEDY), wire_id="w1", params=params)

    def to_prefill(self, posted: dict[str, Any], text: str = TEXT, id: str = "p1") -> Request:
        return replace(ask(id, text, ONE), wire_id="w1", params=posted)

    def posted(self) -> dict[str, Any]:
        return self.meta.posts.get(timeout=PATIENCE_SECONDS)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack)


@pytest.fixture(scope="module")
def right() -> list[int]:
    alone = engine()
    alone.core.start()
    tokens = alone.tokens(ask("alone", TEXT, GREEDY))
    alone.core.stop()
    return tokens


@pytest.mark.parametrize(("at_prefill", "same"), [(TEXT, True), (FOREIGN, False)])
def test_decode_answers_from_what_prefill_wrote(
    fleet: Fleet, right: list[int], at_prefill: str, same: bool
) -> None:
    """The foreign prompt is the negative control: its KV makes another answer."""
    fleet.d.core.submit(asked := fleet.to_decode())
    posted = fleet.posted()

    fleet.p.engine.answer(fleet.to_prefill(posted, at_prefill))

    assert (tokens_of(fleet.d.engine.answers(asked.id)[asked.id]) == right) == same
    assert fleet.d.stats.prompts_computed == 1
    wait_until(lambda: fleet.p.used() == fleet.d.used() == 0, "free pages")
    assert (posted["request_id"], posted["do_remote_decode"]) == ("cmpl-w1-0", True)
    assert len(posted["remote_block_ids"][0]) == -(-len(asked.prompt) // 16)


def test_what_decode_has_in_its_cache_is_not_asked_for(fleet: Fleet, right: list[int]) -> None:
    fleet.d.engine.answer(ask("before", TEXT, ONE))
    short = replace(fleet.to_decode(), prompt=ask("", TEXT).prompt[:33])

    fleet.d.engine.answer(short)

    assert fleet.meta.posts.empty()
    wait_until(lambda: fleet.d.used() == 0, "free pages")


def test_a_client_that_leaves_decode_ends_prefill(fleet: Fleet) -> None:
    fleet.d.core.submit(asked := fleet.to_decode())
    posted = fleet.posted()
    fleet.d.core.abort(asked.id)
    assert fleet.d.engine.answers(asked.id)[asked.id][-1].finish is Finish.ABORT

    fleet.p.core.submit(late := fleet.to_prefill(posted))

    assert fleet.p.engine.answers(late.id)[late.id][-1].finish in (Finish.ABORT, Finish.LENGTH)
    wait_until(lambda: fleet.p.used() == fleet.d.used() == 0, "free pages")


@pytest.mark.parametrize("lease", [0.5])
def test_a_prefill_that_never_calls_fails_the_request_with_a_name(lease: float) -> None:
    with ExitStack() as stack:
        fleet = Fleet(stack, lease_seconds=lease)

        last = fleet.d.engine.answer(fleet.to_decode())[-1]

        assert last.refusal is not None
        assert "prefill has not called in time" in last.refusal.message
        wait_until(lambda: fleet.d.used() == 0, "free pages")


def test_a_metaserver_that_refuses_fails_the_request_at_once(fleet: Fleet) -> None:
    fleet.meta.status = 404

    last = fleet.d.engine.answer(fleet.to_decode())[-1]

    assert last.refusal is not None
    assert "the metaserver answered 404" in last.refusal.message


def test_a_decode_that_is_gone_ends_prefills_request(fleet: Fleet) -> None:
    fleet.d.core.submit(fleet.to_decode())
    posted = fleet.posted()
    fleet.d.connector.close()

    last = fleet.p.engine.answer(fleet.to_prefill(posted))[-1]

    assert last.finish in (Finish.ABORT, Finish.LENGTH)
    wait_until(lambda: fleet.p.used() == 0, "P's pages")


def test_a_call_for_what_no_request_waits_for_is_turned_away(fleet: Fleet) -> None:
    fleet.d.core.submit(fleet.to_decode())
    posted = fleet.posted()
    at = posted["remote_host"], posted["remote_port"]

    with dial(at, Identity(), PURPOSE, PATIENCE_SECONDS) as channel:
        lines = Lines(channel)
        lines.say(Claim("cmpl-other-0", 1, "127.0.0.1", 9))

        assert lines.hear(WorkerAnswer).said is ClaimWord.GONE

    fleet.p.engine.answer(fleet.to_prefill(posted))
    assert tokens_of(fleet.d.engine.answers("d1")["d1"])


@pytest.mark.parametrize(
    "params",
    [
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "metaserver": "https://h:1/"},
        {"do_remote_prefill": True, "metaserver": "http://h/"},
        {"do_remote_decode": True, "remote_host": "h", "remote_port": 1},
        {"do_remote_decode": True, "request_id": "r", "remote_host": "h"},
    ],
)
def test_bad_params_fail_one_request(fleet: Fleet, params: dict[str, Any]) -> None:
    at = fleet.p if "do_remote_decode" in params else fleet.d

    last = at.engine.answer(replace(ask("bad", TEXT, GREEDY), wire_id="w", params=params))[-1]

    assert last.refusal is not None
    assert last.refusal.blame_client
