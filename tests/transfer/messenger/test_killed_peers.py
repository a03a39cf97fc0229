"""A prefill engine that is killed or stops answering, as a real process, at every state.

D gets a named error, once, and its pages back only when nobody is left who could write.
"""

import pytest

from tests.support.engine_pair import D_BLOCKS, PROMPT, arrival
from tests.support.fake_core import LAYOUT, SECONDS, FakeCore
from tests.support.kv_pusher import Pusher
from tests.transfer.messenger.conftest import ALSO_ON_A_DEVICE, EVERYWHERE, error_of, load, tiles

NEEDED = len(PROMPT) - 1
LAYERS = range(LAYOUT.layers)


def met(core: FakeCore, pusher: Pusher) -> None:
    """The first layer has come, so P knows the key and is in the middle of it."""
    landed = tiles(core)
    pusher.do("expect", "k")
    load(core, pusher.port)
    pusher.do("compute", "k", 0, NEEDED)
    landed.get(timeout=SECONDS)


@EVERYWHERE
def test_layer_by_layer_the_pages_come_as_they_are_computed(backend: str, decode: FakeCore) -> None:
    with Pusher(backend) as pusher:
        met(decode, pusher)
        for layer in LAYERS[1:]:
            assert not any(decode.page(layer, D_BLOCKS[0]))
            assert decode.results.empty()
            pusher.do("compute", "k", layer, NEEDED)

        assert decode.result() is None
    assert decode.holds(D_BLOCKS, seed=1)


@EVERYWHERE
def test_before_anything_is_computed(backend: str, decode: FakeCore) -> None:
    with Pusher(backend) as pusher:
        params = {"remote_host": "127.0.0.1", "remote_port": pusher.port}
        decode.load(arrival("d1", "k", params=params), D_BLOCKS)
        pusher.kill()

        assert error_of(decode).startswith("broken peer")
    assert decode.results.empty()


@ALSO_ON_A_DEVICE
@pytest.mark.parametrize("layers", range(1, LAYOUT.layers))
def test_in_the_middle(backend: str, decode: FakeCore, layers: int) -> None:
    with Pusher(backend) as pusher:
        met(decode, pusher)
        for layer in range(1, layers):
            pusher.do("compute", "k", layer, NEEDED)
        pusher.kill()

        # With a reason where the kernel threw away what the dead had not read.
        assert error_of(decode).startswith("broken peer: the prefill engine is gone")
    assert decode.results.empty()


@EVERYWHERE
def test_after_the_last_write(backend: str, decode: FakeCore) -> None:
    with Pusher(backend) as pusher:
        met(decode, pusher)
        pusher.do("finish", "k", NEEDED)
        assert decode.result() is None
        pusher.kill()
    assert decode.holds(D_BLOCKS, seed=1)
    assert decode.results.empty()


@EVERYWHERE
def test_another_life_at_the_same_address_knows_nothing_of_the_first(
    backend: str, decode: FakeCore
) -> None:
    with Pusher(backend) as first:
        met(decode, first)
        first.kill()
        assert error_of(decode).startswith("broken peer")

        with Pusher(backend, first.port) as second:
            load(decode, second.port, "k", "d2")
            assert error_of(decode).startswith("unknown key")

            second.do("expect", "k")
            load(decode, second.port, "k", "d3")
            second.do("finish", "k", NEEDED)
            assert decode.result() is None
    assert decode.holds(D_BLOCKS, seed=1)


@ALSO_ON_A_DEVICE
def test_a_frozen_mover_strands_the_pages_until_it_has_stopped(
    backend: str, impatient: FakeCore
) -> None:
    """P cannot say that nothing will land, so whoever waits is told, and the pages stay."""
    with Pusher(backend) as pusher:
        met(impatient, pusher)
        pusher.freeze_mover()
        pusher.do("compute", "k", 1, NEEDED)

        impatient.connector.cancel("d1")

        request_id, error = impatient.given_up.get(timeout=SECONDS)
        assert (request_id, error) == ("d1", "cancelled: nobody waits for it")
        assert impatient.results.empty()
        assert impatient.connector.counters.stranded == len(D_BLOCKS)
        assert not any(impatient.page(1, D_BLOCKS[0]))

        pusher.thaw_mover()

        assert error_of(impatient) == "cancelled"
        # The late write came before the pages were given back, or was broken off: then it never does.
        given_back = bytes(impatient.page(1, D_BLOCKS[0]))
    assert bytes(impatient.page(1, D_BLOCKS[0])) == given_back
    assert impatient.connector.counters.stranded == 0


@EVERYWHERE
def test_a_frozen_peer_is_found_by_its_silence(backend: str, mistrustful: FakeCore) -> None:
    with Pusher(backend) as pusher:
        met(mistrustful, pusher)
        pusher.freeze()

        request_id, error = mistrustful.given_up.get(timeout=SECONDS)

        assert request_id == "d1"
        assert error.startswith("silent peer")
        assert mistrustful.results.empty()
        pusher.kill()
        assert error_of(mistrustful).startswith("silent peer")
    assert mistrustful.connector.counters.stranded == 0


@EVERYWHERE
def test_a_peer_that_is_killed_while_its_mover_hangs_still_strands_the_pages(
    backend: str, mistrustful: FakeCore
) -> None:
    """The connection lives as long as anybody does who could write."""
    with Pusher(backend) as pusher:
        met(mistrustful, pusher)
        pusher.freeze_mover()
        pusher.kill()

        _, error = mistrustful.given_up.get(timeout=SECONDS)
        assert error.startswith("silent peer")
        assert mistrustful.results.empty()

        pusher.thaw_mover()
        assert error_of(mistrustful).startswith("silent peer")
