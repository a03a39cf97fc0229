"""A prefill engine reads what decode has kept of a turn (vllm-nixl, --read-back), over real cores: tokens, work saved, and what cannot be had."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from pdgate.engine.request import Output
from pdgate.protocols.call import encode
from pdgate.protocols.dialects import nixl
from pdgate.transfer import registry
from tests.support.core_pairs import Side, side
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of

FEW = replace(GREEDY, max_tokens=6)
FIRST = (
    "A conversation of some blocks, whose beginning is worth keeping for the turn that follows. "
    * 2
)
SECOND = FIRST + "And this is said in the next turn."
ASK: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}


class Three:
    """Two prefill engines and a decode engine, of which the latter has answered the first turn."""

    def __init__(self, stack: ExitStack, *, read_back: bool = True) -> None:
        def one(role: str) -> Side:
            backend = registry.load("shm")
            stack.callback(backend.close)
            where = layout()
            pages = backend.allocate(where.total_bytes)
            more: dict[str, Any] = {"mover": "threads", "read_back": read_back}
            made = side(stack, role, "vllm-nixl", backend, where, regions=[pages], **more)
            made.engine.memory = pages.memory
            return made

        self.p0, self.p1, self.d = one("prefill"), one("prefill"), one("decode")
        self.kept = self.turn(self.p0, "1", FIRST, ASK)[-1].kv_transfer_params

    def turn(self, prefill: Side, id: str, prompt: str, params: Any) -> list[Output]:
        last = self.read(prefill, id, prompt, params)[-1]
        return self.d.engine.answer(
            ask(f"d{id}", prompt, FEW, params=dict(last.kv_transfer_params or {}))
        )

    @staticmethod
    def read(prefill: Side, id: str, prompt: str, params: Any) -> list[Output]:
        return prefill.engine.answer(
            ask(f"p{id}", prompt, replace(FEW, max_tokens=1), params=params)
        )

    @property
    def cut(self) -> Any:
        """As the gateway names them: of the first turn's prompt."""
        found = nixl.read_back(encode(self.kept), len(ask("", FIRST).prompt))
        assert found is not None
        return {
            **dict(self.kept or {}),
            **{n: found[n] for n in ("remote_block_ids", "remote_num_tokens")},
        }


@pytest.fixture
def three() -> Iterator[Three]:
    with ExitStack() as stack:
        yield Three(stack)


@pytest.fixture(scope="module")
def alone() -> list[int]:
    one = engine()
    one.core.start()
    tokens = one.tokens(ask("single", SECOND, FEW))
    one.core.stop()
    return tokens


def test_the_next_turn_is_the_same_and_only_what_is_new_is_computed(
    three: Three, alone: list[int]
) -> None:
    cut = three.cut

    assert tokens_of(three.turn(three.p1, "2", SECOND, cut)) == alone

    computed = three.p1.stats.prompts_computed
    assert computed == len(ask("", SECOND).prompt) - cut["remote_num_tokens"]
    assert computed < len(ask("", FIRST).prompt) / 2


def test_kv_that_is_wrong_would_be_seen(three: Three, alone: list[int]) -> None:
    """The negative control: decode's pages are overwritten before they are read."""
    cut = three.cut
    memory = three.d.engine.memory
    assert any(memory)
    with three.d.engine.resting():
        memory[:] = bytes(len(memory))

    assert tokens_of(three.turn(three.p1, "2", SECOND, cut)) != alone


def test_what_was_read_is_free_and_cannot_be_read_again(three: Three, alone: list[int]) -> None:
    """The second prefill computes it, and says the same."""
    cut = three.cut
    three.turn(three.p1, "2", SECOND, cut)
    used = three.p0.stats.prompts_computed

    assert tokens_of(three.turn(three.p0, "3", "x" + SECOND, cut)) != alone
    assert three.p0.stats.prompts_computed == used + len(ask("", "x" + SECOND).prompt)


def test_a_prefill_that_cannot_read_computes(three: Three, alone: list[int]) -> None:
    gone = {**three.cut, "remote_engine_id": "of another life"}

    assert tokens_of(three.turn(three.p1, "2", SECOND, gone)) == alone
    assert three.p1.stats.prompts_computed == len(ask("", SECOND).prompt)


def test_engines_without_the_flag_keep_nothing_and_read_nothing() -> None:
    with ExitStack() as stack:
        three = Three(stack, read_back=False)
        assert three.kept is None
        named = {**ASK, "remote_block_ids": [[1]]}
        refusal = Three.read(three.p1, "2", SECOND, named)[-1].refusal

    assert refusal is not None
    assert refusal.blame_client
    assert "--read-back" in refusal.message
