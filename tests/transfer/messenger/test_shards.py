"""Who exchanges what when both sides are split, and what of it a peer may not say."""

import queue
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import closing

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, PeerLost, Range, TransferError
from pdgate.transfer.messenger import messages, shards
from pdgate.transfer.messenger.asked import Asked
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.mover import Destination, Done, Mover
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.messenger.sharded import Sharded
from pdgate.transfer.messenger.tiles import Tile, Tiles
from pdgate.transfer.plan.count import WHOLE, Rhythm
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder, Rank
from pdgate.transfer.runtime.channel import Channel
from tests.support.engine_pair import D_BLOCKS, arrival
from tests.support.fake_core import SECONDS, FakeCore
from tests.support.kv_layouts import engines
from tests.support.proven import listening
from tests.transfer.messenger.nodes import shape_of


def shape(tp: int, kv_heads: int = 4) -> PageShape:
    return PageShape("tiny", 3, 16, kv_heads, 4, 8, "float32", 4, tp)


def region(tp: int, length: int | None = None, backend: str = "shm") -> dict[str, object]:
    bytes_needed = shape(tp).region_bytes(0) if length is None else length
    return descriptors.as_data(Descriptor(backend, "ab" * 16, bytes_needed, {}))


def refused(data: list[dict[str, object]], tp: int = 2) -> HandOverError:
    with pytest.raises(HandOverError) as caught:
        shards.remotes(data, shape(tp), "shm")
    return caught.value


def test_a_peer_has_as_many_regions_as_shards() -> None:
    assert len(shards.remotes([region(2), region(2)], shape(2), "shm")) == 2
    assert refused([region(2)]).message == "1 regions for 2 ranks"
    assert refused([]).why is Why.WRONG_SHAPE


def test_every_region_is_looked_at() -> None:
    assert refused([region(2), {"backend": 1}]).why is Why.BROKEN
    assert refused([region(2), region(2, backend="tcp")]).why is Why.UNSUPPORTED
    assert refused([region(2), region(2, length=100)]).why is Why.WRONG_SHAPE


@pytest.mark.parametrize("tp", [3, 0, -1, 6, 1 << 40])
def test_shards_that_cannot_be_are_refused(tp: int) -> None:
    with pytest.raises(HandOverError, match="wrong layout") as caught:
        shards.pairs(shape(1), shape(tp), "k")
    assert str(tp) in caught.value.message


@pytest.mark.parametrize(("source", "to", "writers"), [(1, 1, 1), (4, 2, 2), (2, 4, 1), (8, 2, 2)])
def test_a_shard_waits_for_each_source_that_has_some_of_its_heads(
    source: int, to: int, writers: int
) -> None:
    moving = shards.pairs(shape(source), shape(to), "k")

    assert shards.counts(moving, shape(to), range(8), WHOLE) == dict.fromkeys(range(to), writers)


def test_pages_of_equal_shards_go_whole() -> None:
    """One range per layer, as blocks in a row are adjacent."""
    (cut,) = shards.reads(shape(1), shape(1), "k", ((4, 5), (8, 9)), range(8))

    page = shape(1).page_bytes
    assert [one.length for one in cut.ranges] == [2 * page] * 3


def test_regions_are_numbered_stage_by_stage() -> None:
    """As both sides send their descriptors."""
    staged = msgspec.structs.replace(shape(2), stages=(1, 2))

    assert [shards.region(staged, Rank(0, stage, tp)) for stage in (0, 1) for tp in (0, 1)] == [
        0,
        1,
        2,
        3,
    ]
    page = staged.page_bytes
    assert [staged.region_bytes(rank) // page for rank in range(4)] == [16, 16, 32, 32]


def met(**theirs: object) -> str:
    ours = msgspec.structs.replace(shape(1), order=LayoutOrder.HND)
    with pytest.raises(HandOverError) as caught:
        shards.meet(ours, msgspec.structs.replace(ours, **theirs))
    assert caught.value.why is Why.WRONG_SHAPE
    return caught.value.message


def test_what_can_never_fit_is_refused_with_both_numbers() -> None:
    assert met(block_tokens=6) == "block_tokens 4 here, 6 there"
    assert met(planes=1) == "planes 2 here, 1 there"
    assert met(order=None) == "order HND here, unsaid there"
    assert met(stages=(2, 2)) == "stages of [2, 2] layers for 3 layers"
    assert met(stages=(3, 0)) == "stages must be positive, not 0"
    assert "1024 stages" in met(stages=(1,) * 1024, tp=4)


def test_pages_that_only_their_engine_can_read_are_not_cut_by_tokens() -> None:
    """vLLM's CPU pages, say: a block of 32 tokens is not two of 16."""
    with pytest.raises(HandOverError, match="block_tokens 4 here, 8 there"):
        shards.meet(shape(1), msgspec.structs.replace(shape(1), block_tokens=8))


class Ways(Mover):
    """Movers that remember what they were told, and end nothing by themselves."""

    def __init__(self, opens: int = 99) -> None:
        self.opens = opens
        self.open_now = 0
        self.done: list[Done] = []

    def open(self, remote: Descriptor, line: int) -> Destination:
        if not self.opens:
            raise OSError("no more of them")
        self.opens -= 1
        self.open_now += 1
        return Way(self)

    def close(self) -> None:
        return


class Way(Destination):
    def __init__(self, ways: Ways) -> None:
        self.ways = ways

    def write(self, ranges: object, until: float, immediate: int, done: Done) -> None:
        self.ways.done.append(done)

    def cancel(self) -> None:
        return

    def close(self) -> None:
        self.ways.open_now -= 1


def sharded(movers: list[Ways]) -> Sharded:
    asked = Asked(
        key="k",
        wait=False,
        remotes={0: Descriptor("shm", "ab" * 16, 0, {})},
        shape=shape(1),
        block_ids=[8],
        tiles=Tiles.of(range(3), range(4), Rhythm(4, by_layer=True)),
        immediate=1,
        until=0.0,
    )
    return Sharded(dict(enumerate(movers)), 0, shape(4), asked)


def test_a_tile_has_landed_when_all_its_parts_have() -> None:
    movers = [Ways() for _ in range(4)]
    ended: list[TransferError | None] = []

    sharded(movers).write(Tile(0, 0), [4], ended.append)
    for mover in movers:
        assert ended == []
        (done,) = mover.done
        done(None)

    assert ended == [None]


def test_a_part_that_fails_is_told_when_the_others_move_nothing_any_more() -> None:
    movers = [Ways() for _ in range(4)]
    ended: list[TransferError | None] = []
    lost = PeerLost("gone")

    sharded(movers).write(Tile(0, 0), [4], ended.append)
    for mover, error in zip(movers, [None, lost, None, TransferError("later")], strict=True):
        assert ended == []
        mover.done[0](error)

    assert ended == [lost]


def test_movers_that_were_opened_in_vain_are_closed() -> None:
    movers = [Ways(), Ways(), Ways(opens=0), Ways()]

    with pytest.raises(OSError, match="no more"):
        sharded(movers)

    assert [mover.open_now for mover in movers] == [0, 0, 0, 0]


class Tally(Mover):
    """Counts what is written, by the region in which it would land."""

    def __init__(self, landed: Counter[str]) -> None:
        self._landed = landed

    def open(self, remote: Descriptor, line: int) -> Destination:
        return Ledger(self._landed, remote.epoch)

    def close(self) -> None:
        return


class Ledger(Destination):
    def __init__(self, landed: Counter[str], region: str) -> None:
        self._landed = landed
        self._region = region

    def write(self, ranges: Sequence[Range], until: float, immediate: int, done: Done) -> None:
        assert len(ranges) > 0
        self._landed[self._region] += 1
        done(None)

    def cancel(self) -> None:
        return

    def close(self) -> None:
        return


@given(engines(), st.integers(0, 3), st.integers(1, 20), st.integers(0, 20), st.booleans())
def test_p_writes_as_often_as_d_counts(
    pair: tuple[KvLayout, KvLayout], skipped: int, tokens: int, tile_tokens: int, by_layer: bool
) -> None:
    """Each from the two shapes, whatever these are."""
    source, to = (shape_of(layout) for layout in pair)
    start = skipped * shards.unit_tokens(source, to)
    wanted = range(start, min(start + tokens, 16 * min(source.block_tokens, to.block_tokens)))
    assume(len(wanted))
    beat = shards.rhythm(source, to, Rhythm(tile_tokens, by_layer))
    tiles = Tiles.of(range(source.layers), wanted, beat)
    asked = Asked(
        key="k",
        wait=False,
        remotes={n: Descriptor("shm", str(n), 0, {}) for n in range(to.ranks)},
        shape=to,
        block_ids=range(to.blocks_for(wanted.stop)),
        tiles=tiles,
        immediate=1,
        until=0.0,
    )
    landed: Counter[str] = Counter()
    movers = {number: Tally(landed) for number in range(source.ranks)}
    way = Sharded(movers, 0, source, asked)
    ended: list[TransferError | None] = []

    for lane in range(len(tiles.lanes)):
        for chunk in range(len(tiles.chunks)):
            way.write(Tile(lane, chunk), range(16), ended.append)

    assert ended == [None] * tiles.count
    counts = shards.counts(shards.pairs(source, to, "k"), to, wanted, beat)
    assert {n: landed[str(n)] for n in range(to.ranks)} == counts


def test_blocks_of_ours_that_do_not_exist_fail_the_tile() -> None:
    ended: list[TransferError | None] = []

    sharded([Ways() for _ in range(4)]).write(Tile(0, 0), [99], ended.append)

    (error,) = ended
    assert str(error) == "block 99 of a source that has 16"


@pytest.mark.parametrize("tp", [3, -1, 1 << 40])
def test_a_prefill_with_impossible_shards_is_told_to_stop(tp: int) -> None:
    came: queue.SimpleQueue[Channel] = queue.SimpleQueue()
    ended = threading.Event()

    def serve(channel: Channel) -> None:
        came.put(channel)
        assert ended.wait(SECONDS)

    with (
        closing(FakeCore("shm", "vllm-kvt", "decode")) as core,
        listening(messages.PURPOSE, serve) as port,
    ):
        params = {"remote_host": "127.0.0.1", "remote_port": port, "do_remote_prefill": True}
        core.load(arrival("d1", "k", params=params), D_BLOCKS)
        sock = came.get(timeout=SECONDS)
        try:
            said = messages.receive(sock)
            assert isinstance(said, messages.Push)
            replaced = msgspec.structs.replace(said.shape, tp=tp)
            messages.send(sock, messages.Writing(replaced))
            assert isinstance(messages.receive(sock), messages.Cancel)
            messages.send(sock, messages.Stopped())
        finally:
            ended.set()

        error = core.result()

    assert error is not None
    assert "wrong layout" in error
