"""A request that waits for blocks of another host: it begins once, when they have come, and ends like any other meanwhile."""

from collections.abc import Callable, Sequence

import pytest

from pdgate.engine.cache.peer_tier import PeerTier
from pdgate.engine.cache.tier_counts import Counts
from pdgate.engine.cache.tiers import Tiers
from pdgate.engine.hand_over.blocks import NamedBlocks
from pdgate.engine.request import Finish, Sampling
from pdgate.engine.work import Options
from tests.support.engine_cores import Engine, ask, engine, layout, tokens_of

TEXT = "A prompt of several blocks, of which another host may have some. " * 3


class Peers(PeerTier):
    """Other hosts that have what is put into `theirs`, and give it when `come` is called."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.theirs: dict[str, bytes] = {}
        self.asked: list[Sequence[str]] = []
        self._then: list[Callable[[], object]] = []
        self._came = {}  # type: ignore[assignment]

    def has(self, name: str) -> bool:
        return name in self._came

    def take(self, name: str) -> bytes | None:
        return self._came.pop(name, None)

    def fetch(self, names: Sequence[str], then: Callable[[], object]) -> bool:
        self.asked.append(names)
        self._then.append(then)
        return bool(names)

    def come(self) -> None:
        wanted = [name for names in self.asked for name in names]
        self._came = {name: self.theirs[name] for name in wanted if name in self.theirs}  # type: ignore[assignment]
        then, self._then = self._then, []
        for each in then:
            each()
            # A second word of the same fetch is of no effect.
            each()


def with_peers(peers: Peers) -> Engine:
    shape = layout()
    memory = memoryview(bytearray(shape.total_bytes))
    tiers = Tiers([], NamedBlocks(shape, "m", [memory]), "m", peers)
    made = engine(Options(tiers=tiers))
    tiers._blocks = NamedBlocks(shape, "m", [made.memory])
    made.core.start()
    return made


@pytest.fixture
def peers() -> Peers:
    return Peers()


@pytest.fixture
def made(peers: Peers) -> Engine:
    return with_peers(peers)


def test_it_begins_when_its_blocks_have_come_and_does_not_compute_them(
    peers: Peers, made: Engine
) -> None:
    first = with_peers(Peers())
    first_peers = first.core.tiers[0]
    assert isinstance(first_peers, Peers)
    first.core.submit(ask("first", TEXT))
    with first.resting():
        pass
    first_peers.come()
    expected = tokens_of(first.answers("first")["first"])
    # As if the other host had put each block under the name by which it is asked for.
    blocks = NamedBlocks(layout(), "m", [first.memory])
    held = first.core._work._pool._block_of
    for full, block_id in held.items():
        peers.theirs[first.core._work._options.tiers._name(full)] = blocks.read(block_id)  # type: ignore[union-attr]
    first.core.stop()

    made.core.submit(ask("r", TEXT))
    with made.resting():
        assert made.outputs.empty()
    peers.come()
    answer = made.answers("r")["r"]
    made.core.stop()

    assert tokens_of(answer) == expected
    assert answer[-1].cached_tokens == len(peers.asked[0]) * 16 > 0


def test_one_that_is_aborted_meanwhile_does_not_begin(peers: Peers, made: Engine) -> None:
    made.core.submit(ask("r", TEXT))
    made.core.abort("r")

    assert made.next().finish is Finish.ABORT
    peers.come()
    with made.resting():
        assert made.outputs.empty()
    assert made.core.gauges.blocks_used == 0
    made.core.stop()


def test_an_engine_that_stops_does_not_wait(peers: Peers, made: Engine) -> None:
    made.core.submit(ask("r", TEXT))
    with made.resting():
        pass

    made.core.stop()

    assert made.next().finish is Finish.ABORT
    peers.come()


def test_a_pause_holds_it_when_its_blocks_have_come(peers: Peers, made: Engine) -> None:
    made.core.submit(ask("r", TEXT))
    made.core.pause(frozen=False)
    with made.resting():
        pass
    peers.come()
    with made.resting():
        assert made.outputs.empty()

    made.core.resume()

    assert made.answers("r")["r"][-1].finish is Finish.LENGTH
    # It was not asked for again.
    assert len(peers.asked) == 1
    made.core.stop()


def test_others_go_on_meanwhile_and_what_is_wanted_whole_is_not_asked_for(
    peers: Peers, made: Engine
) -> None:
    made.core.submit(ask("waits", TEXT))

    short = made.answer(ask("short", "x"))
    whole = made.answer(ask("whole", TEXT, Sampling(max_tokens=1, prompt_logprobs=0)))

    assert short[-1].finish is Finish.LENGTH
    assert whole[-1].finish is not None
    assert [bool(names) for names in peers.asked] == [True, False]
    peers.come()
    assert made.answers("waits")["waits"][-1].finish is Finish.LENGTH
    made.core.stop()
