"""A loan is over when it is called in: its pages are used again at once."""

from contextlib import closing

import pytest

from pdgate.engine.hand_over.lending import Lending
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.transfer import descriptors, registry
from pdgate.transfer.base import Range, StaleDescriptor
from pdgate.transfer.messenger import messages
from pdgate.transfer.messenger.offers import Offers
from pdgate.transfer.messenger.shape import PageShape
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore
from tests.support.proven import channel

SHAPE = PageShape.of(LAYOUT, "tiny", order=LAYOUT.order)
BLOCKS = (4, 5)


def test_what_was_called_in_is_not_read_any_more() -> None:
    """Not by a peer that still has the descriptor, and its connection: the next request's KV is there."""
    with (
        closing(FakeCore("tcp", "vllm-kvt", "decode")) as decode,
        closing(registry.load("tcp", identity=decode.identity)) as backend,
        channel(decode.connector.kv_address) as peer,
    ):
        assert isinstance(decode.connector, TwoSided)
        lending = Lending(decode.connector._offers, "", decode.connector.kv_address)
        lent = lending.lend("k", BLOCKS, 8)
        messages.send(peer, messages.Ask(lent.key, "", 0.0, SECONDS, SHAPE))
        offered = messages.receive(peer)
        assert isinstance(offered, messages.Offered)
        there, here = descriptors.from_data(offered.descriptors[0]), backend.allocate(1)
        page = [Range(0, LAYOUT.page_offset(0, BLOCKS[0]), 1)]
        backend.read(here, there, page, SECONDS).wait(SECONDS)

        lending.call_in("k")

        with pytest.raises(StaleDescriptor):
            backend.read(here, there, page, SECONDS).wait(SECONDS)
        messages.send(peer, messages.Release(lent.key, offered.offer_id))
        assert messages.receive(peer) == messages.Released(held=False)


def test_what_is_called_in_before_it_is_granted_is_not_granted() -> None:
    offers, reader = Offers(), object()
    Lending(offers, "", ("127.0.0.1", 1)).lend("k", BLOCKS, 8)
    (key,) = offers._entries
    offer = offers.wait(key, 0, reader)

    offers.forget(key)

    assert not offers.granted(key, offer.id, reader, lambda: None)
