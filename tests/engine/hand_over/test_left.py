"""Decode asks, and has left before prefill hears of the request: then it is computed for nobody."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from pdgate.engine.connector import Arrival
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.offers import Offers
from pdgate.transfer.runtime.channel import dial
from tests.support.engine_pair import D_BLOCKS, Pair
from tests.support.fake_core import SECONDS
from tests.support.kv_strangers import ask_for, push_into

DIALECTS = ("vllm-mooncake b", "vllm-mooncake c", "vllm-mooncake d", "sglang")
"""Both legs start together, so decode may ask first."""


@pytest.fixture(params=DIALECTS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with closing(Pair(str(request.param), "tcp")) as pair:
        yield pair


def asked_and_left(pair: Pair) -> None:
    pair.d.load(pair.to_decode(), D_BLOCKS)
    pair.d.connector.cancel("d1")
    assert pair.d.result() == "cancelled"
    # Returns when all that it had to say was answered.
    pair.d.connector.close()


def other(pair: Pair) -> Arrival:
    return replace(pair.to_prefill(2), wire_id="w2")


def test_what_decode_has_given_up_is_not_computed(pair: Pair) -> None:
    asked_and_left(pair)

    pair.p.connector.plan(pair.to_prefill())

    assert pair.p.aborted.get(timeout=SECONDS) == "p1"


def test_it_is_known_of_that_request_alone_and_once(pair: Pair) -> None:
    asked_and_left(pair)

    pair.p.connector.plan(other(pair))
    pair.p.connector.plan(pair.to_prefill())
    assert pair.p.aborted.get(timeout=SECONDS) == "p1"
    pair.p.connector.dropped("p1", "aborted")
    if pair.dialect != "vllm-mooncake d":
        # A transfer id is good for one request.
        pair.p.connector.plan(pair.to_prefill())

    assert pair.p.aborted.empty()


@pytest.mark.parametrize("dialect", ["vllm-mooncake b", "sglang"])
def test_a_decode_that_was_killed_says_nothing_and_is_missed_all_the_same(dialect: str) -> None:
    with closing(Pair(dialect, "tcp")) as pair:
        key = "w1" if dialect != "sglang" else f"room {pair.to_prefill().body['bootstrap_room']}"
        said = ask_for(key) if dialect == "sglang" else push_into(key)
        service = pair.p.connector.service_address  # type: ignore[attr-defined]
        with dial(service, pair.p.identity, messages.PURPOSE, SECONDS) as line:
            messages.send(line, said)
            line.sock.settimeout(SECONDS)
            if dialect != "sglang":
                # It is known that it asked; who waits for an offer is not answered meanwhile.
                messages.send(line, messages.Ping())
                assert messages.receive(line) == messages.Pong()

        pair.p.connector.plan(pair.to_prefill())

        assert pair.p.aborted.get(timeout=SECONDS) == "p1"


def test_who_asks_again_is_there() -> None:
    offers = Offers()
    for asks in (_claims, _waits_in_vain):
        assert offers.abandon("k") is None
        asks(offers)
        assert offers.expect("k", "p1")
        offers.drop("p1", "the test goes on")


def test_who_asks_for_the_prefill_itself_is_there() -> None:
    offers = Offers()
    assert offers.abandon("k") is None
    assert offers.expect("k", "p1", only=("decode",))


def _claims(offers: Offers) -> None:
    assert offers.claim("k", object()) is None


def _waits_in_vain(offers: Offers) -> None:
    with pytest.raises(HandOverError):
        offers.wait("k", 0, object())
