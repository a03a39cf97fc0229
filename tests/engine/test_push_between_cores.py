"""KV that a real model computes and pushes, layer by layer, into another core's pages."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.engine.request import Finish, Request
from pdgate.engine.scheduler import StepLimits
from pdgate.engine.work import Options
from pdgate.transfer import registry
from pdgate.transfer.messenger.process_mover import ProcessMover
from pdgate.transfer.messenger.receiving import Patience
from tests.support.core_pairs import Side, side, until
from tests.support.engine_cores import ask, engine, layout, tokens_of
from tests.support.freezing import freeze, thaw

TEXT = "The quick brown fox jumps over the lazy dog, and then over another one, and so on."
IMPATIENT = Patience(ping=0.05, stop=0.2)
"""With a peer that does not do what it was told, and not with one that is slow."""


class Scene:
    def __init__(self, backend: str, stack: ExitStack, prefill_lease_seconds: float) -> None:
        self._backend = backend
        self._stack = stack
        # Chunks of 20 tokens end inside a block of 16.
        chunked = Options(StepLimits(max_seqs=8, max_tokens=20))
        self.prefill = self._side("prefill", chunked, prefill_lease_seconds)
        self.decode = self._side("decode", Options(), lease_seconds=30.0)

    def _side(self, role: str, options: Options, lease_seconds: float) -> Side:
        backend = registry.load(self._backend)
        self._stack.callback(backend.close)
        return side(
            self._stack,
            role,
            "vllm-kvt",
            backend,
            layout(),
            options=options,
            lease_seconds=lease_seconds,
            patience=IMPATIENT,
        )

    def mover(self) -> int:
        """The process id of prefill's mover."""
        assert isinstance(self.prefill.connector, TwoSided)
        (mover,) = self.prefill.connector.movers
        assert isinstance(mover, ProcessMover)
        return mover.pid

    def request(self, request_id: str = "d", text: str = TEXT) -> Request:
        address: dict[str, Any] = {"remote_host": "127.0.0.1", "remote_port": self.prefill.port}
        return ask(request_id, text, params=address)

    def none_is_taken(self) -> bool:
        """Once D's load has ended and P was told to let go."""
        until(self.decode.core.told, "loaded")
        until(self.prefill.core.told, "release")
        return self.decode.used() == 0 and self.prefill.used() == 0

    def stuck(self) -> None:
        """All of "d" is computed, and none of it has come."""
        freeze(self.mover())
        self.decode.engine.core.submit(self.request())
        until(self.prefill.asked, "kept")


@pytest.fixture(params=["shm", "tcp"])
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(str(request.param), stack, prefill_lease_seconds=30.0)


@pytest.fixture
def hasty() -> Iterator[Scene]:
    """Prefill's leases end while the test looks; decode waits for as long as that takes."""
    with ExitStack() as stack:
        yield Scene("shm", stack, prefill_lease_seconds=0.3)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    alone = engine()
    alone.core.start()
    tokens = alone.tokens(ask("single", TEXT))
    alone.core.stop()
    return tokens


def test_decode_goes_on_where_prefill_pushed(scene: Scene, expected: list[int]) -> None:
    answer = scene.decode.engine.answer(scene.request())

    assert tokens_of(answer) == expected
    assert scene.decode.stats.prompts_computed == 1
    assert scene.prefill.stats.generated == 0
    assert scene.none_is_taken()


def test_many_at_once(scene: Scene) -> None:
    texts = {f"d{n}": f"{n} {TEXT[n:]}" for n in range(6)}
    alone = engine()
    alone.core.start()
    right = {name: alone.tokens(ask(name, text)) for name, text in texts.items()}
    alone.core.stop()

    for name, text in texts.items():
        scene.decode.core.submit(scene.request(name, text))
    answers = scene.decode.engine.answers(*texts)

    assert {name: tokens_of(outputs) for name, outputs in answers.items()} == right


def test_an_abort_while_the_mover_hangs_frees_pages_when_it_cannot_write_any_more(
    scene: Scene,
) -> None:
    """On both sides: P's are read by the hanging write, D's are written."""
    scene.stuck()

    scene.decode.core.abort("d")

    assert scene.decode.engine.answers("d")["d"][-1].finish is Finish.ABORT
    until(scene.decode.core.told, "gave up")
    assert scene.decode.used() > 0
    assert scene.prefill.used() > 0
    thaw(scene.mover())
    assert scene.none_is_taken()


def test_a_mover_that_dies_fails_what_it_wrote_and_nothing_else(
    scene: Scene, expected: list[int]
) -> None:
    scene.stuck()
    os.kill(scene.mover(), signal.SIGKILL)

    assert scene.decode.engine.answers("d")["d"][-1].finish is Finish.ABORT
    assert scene.none_is_taken()
    assert tokens_of(scene.decode.engine.answer(scene.request("d2"))) == expected
    assert scene.none_is_taken()


def test_a_lease_that_ends_while_pages_are_read_keeps_them(hasty: Scene) -> None:
    hasty.stuck()

    until(hasty.prefill.asked, "dropped in use")

    assert hasty.prefill.core.gauges.blocks_kept == 0
    assert hasty.prefill.used() > 0
    thaw(hasty.mover())
    # In time or not: all that it was to write was under way when the lease ended.
    hasty.decode.engine.answers("d")
    assert hasty.none_is_taken()
