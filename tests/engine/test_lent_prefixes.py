"""decode-first where decode has the prompt's beginning already, as in a chat's second turn."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from pdgate.engine.hand_over.decode_first import DecodeFirstHandOver
from pdgate.engine.hand_over.lending import Lending
from pdgate.engine.layout import Layout
from pdgate.engine.request import Finish, Request, Sampling
from pdgate.engine.scheduler import StepLimits
from pdgate.engine.work import Options
from pdgate.protocols.dialects import decode_first
from pdgate.transfer import registry
from pdgate.transfer.messenger.errors import HandOverError
from pdgate.transfer.messenger.messages import Lent
from pdgate.transfer.messenger.offers import Offer, Offers, ReleasedOffer
from tests.support.core_pairs import Side, side, until
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of
from tests.support.waiting import PATIENCE_SECONDS

FIRST = "Whoever has the beginning of some prompt need not have it computed once more. Never. "
"""Its full blocks end in the middle of a block of 32 tokens."""
TEXT = FIRST + "The quick brown fox jumps over the lazy dog, and then over another one."
SEEDED = replace(GREEDY, temperature=0.9, top_p=0.9, seed=7)
BLOCK = 16
NEEDED = len(ask("", TEXT).prompt) - 1
"""Of prefill: decode computes the last token."""


class Scene:
    """One prefill and one decode engine at a queue of their own."""

    def __init__(self, stack: ExitStack, backend: str, **prefill_layout: int) -> None:
        self._stack = stack
        self._backend = backend
        self._queue = f"memory://{uuid.uuid4().hex}"
        # Chunks of 20 tokens end inside a block.
        chunked = Options(StepLimits(max_seqs=8, max_tokens=20))
        self.prefill = self._side("prefill", chunked, layout(**prefill_layout))
        self.decode = self._side("decode", Options(), layout())

    def _side(self, role: str, options: Options, where: Layout) -> Side:
        backend = registry.load(self._backend)
        self._stack.callback(backend.close)
        return side(
            self._stack,
            role,
            "decode-first",
            backend,
            where,
            options=options,
            queue=self._queue,
            mover="threads",
        )

    def first_turn(self) -> int:
        """Decode alone computes the beginning. How many tokens of it others can have."""
        asked = ask("first", FIRST, replace(GREEDY, max_tokens=1))
        self.decode.engine.answer(asked)
        return len(asked.prompt) // BLOCK * BLOCK

    def queued(self, sampling: Sampling = GREEDY) -> Request:
        return ask("d", TEXT, sampling, params=dict(decode_first.QUEUED))


@pytest.fixture(params=["shm", "tcp"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack, str(request.param))


@pytest.fixture(scope="module")
def expected() -> dict[Sampling, list[int]]:
    alone = engine()
    alone.core.start()
    found = {one: alone.tokens(ask("single", TEXT, one)) for one in (GREEDY, SEEDED)}
    alone.core.stop()
    return found


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_prefill_reads_what_decode_has_and_computes_the_rest(
    scene: Scene, sampling: Sampling, expected: dict[Sampling, list[int]]
) -> None:
    had = scene.first_turn()

    answer = scene.decode.engine.answer(scene.queued(sampling))

    assert tokens_of(answer) == expected[sampling]
    computed = scene.prefill.stats
    assert (computed.prompts_from_peer, computed.prompts_computed) == (had, NEEDED - had)
    assert scene.decode.stats.prompts_from_peer == NEEDED - had


@pytest.mark.parametrize(
    "prefill_layout", [{"block_tokens": 8}, {"block_tokens": 32}, {"tp": 2}], ids=str
)
def test_they_need_not_keep_their_kv_in_one_way(
    prefill_layout: dict[str, int], expected: dict[Sampling, list[int]]
) -> None:
    with ExitStack() as stack:
        scene = Scene(stack, "shm", **prefill_layout)
        had = scene.first_turn()

        assert tokens_of(scene.decode.engine.answer(scene.queued())) == expected[GREEDY]
        assert scene.prefill.stats.prompts_from_peer == had


def test_what_prefill_has_itself_is_not_read(
    scene: Scene, expected: dict[Sampling, list[int]]
) -> None:
    had = scene.first_turn()
    scene.prefill.engine.answer(ask("own", FIRST, replace(GREEDY, max_tokens=1)))
    before = scene.prefill.stats.prompts_computed

    assert tokens_of(scene.decode.engine.answer(scene.queued())) == expected[GREEDY]

    stats = scene.prefill.stats
    assert (stats.prompts_from_peer, stats.prompts_from_cache) == (0, had)
    assert stats.prompts_computed - before == NEEDED - had
    assert scene.decode.connector.counters.sent == 0


def another_life(lending: Lending, key: str, block_ids: object, tokens: int, after: object) -> Lent:
    return Lent(lending._host, lending._port, "another life", key, tokens)


def nobody(lending: Lending, key: str, block_ids: object, tokens: int, after: object) -> Lent:
    """Port 1 of this machine is no engine's."""
    return Lent("127.0.0.1", 1, lending._engine_id, key, tokens)


@pytest.mark.parametrize("lend", [another_life, nobody])
def test_what_cannot_be_read_is_computed(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    lend: object,
    expected: dict[Sampling, list[int]],
) -> None:
    scene.first_turn()
    monkeypatch.setattr(Lending, "lend", lend)

    assert tokens_of(scene.decode.engine.answer(scene.queued())) == expected[GREEDY]

    stats = scene.prefill.stats
    assert (stats.loads_failed, stats.prompts_from_peer, stats.prompts_computed) == (1, 0, NEEDED)


def test_what_was_called_in_while_it_was_read_is_not_believed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, expected: dict[Sampling, list[int]]
) -> None:
    """Nor does it stay in prefill's cache: somebody else's tokens may be in the pages by then."""
    scene.first_turn()
    release = Offers.release

    def called_in(offers: Offers, key: str, offer_id: str, reader: object) -> ReleasedOffer:
        offers.forget(key)
        return release(offers, key, offer_id, reader)

    monkeypatch.setattr(Offers, "release", called_in)

    assert tokens_of(scene.decode.engine.answer(scene.queued())) == expected[GREEDY]

    stats = scene.prefill.stats
    assert (stats.loads_failed, stats.prompts_from_cache, stats.prompts_computed) == (1, 0, NEEDED)


def test_pages_that_are_being_filled_stay_taken_though_nobody_wants_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.first_turn()
    read, go_on = threading.Event(), threading.Event()
    loaded = scene.prefill.core.loaded

    def late(request_id: str, error: str | None = None) -> None:
        read.set()
        assert go_on.wait(PATIENCE_SECONDS)
        loaded(request_id, error)

    monkeypatch.setattr(scene.prefill.core, "loaded", late)
    scene.decode.core.submit(scene.queued())
    assert read.wait(PATIENCE_SECONDS)

    scene.decode.core.abort("d")

    until(scene.prefill.core.told, "abort")
    assert scene.prefill.used() > 0
    go_on.set()
    until(scene.prefill.core.told, "loaded")
    assert scene.prefill.used() == 0


def test_a_client_that_leaves_while_prefill_reads_leaves_no_page_taken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.first_turn()
    reading, go_on = threading.Event(), threading.Event()
    assert isinstance(scene.decode.connector, DecodeFirstHandOver)
    offers = scene.decode.connector._offers
    wait, refused = offers.wait, threading.Event()

    def slowly(*asked: Any) -> Offer:
        reading.set()
        assert go_on.wait(PATIENCE_SECONDS)
        try:
            return wait(*asked)
        except HandOverError:
            refused.set()
            raise

    monkeypatch.setattr(offers, "wait", slowly)
    scene.decode.core.submit(scene.queued())
    assert reading.wait(PATIENCE_SECONDS)

    scene.decode.core.abort("d")

    assert scene.decode.engine.answers("d")["d"][-1].finish is Finish.ABORT
    until(scene.prefill.core.told, "abort")
    until(scene.decode.core.told, "loaded")
    go_on.set()
    until(scene.prefill.core.told, "loaded")
    assert refused.wait(PATIENCE_SECONDS)
    assert scene.prefill.used() == scene.decode.used() == 0


@pytest.mark.parametrize("tokens", [0, -1, NEEDED, NEEDED + 1])
def test_a_loan_of_more_than_there_is_to_compute_is_refused(tokens: int) -> None:
    with ExitStack() as stack:
        connector = Scene(stack, "shm").prefill.connector
        assert isinstance(connector, DecodeFirstHandOver)

        with pytest.raises(ValueError, match="are lent"):
            connector.borrow(Lent("127.0.0.1", 1, "e", "k", tokens), NEEDED, "d")
