"""A shared store: decode finds by a prompt's tokens what prefill has put there, and computes what it does not find."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from pdgate.engine.hand_over.blocks import NamedBlocks
from pdgate.engine.request import Finish, Request
from pdgate.forwarders.base import Mode
from pdgate.transfer import registry
from tests.support.core_pairs import Crossing, Row, Side, side
from tests.support.engine_cores import GREEDY, ask, engine, layout, tokens_of

TEXT = "my own prompt, which is exactly as long as the foreign one"
FOREIGN = "what someone else asked, which is as long as my own prompt"
ROW = Row("store-mediated", Mode.STAGED)
BLOCK = 16


class Fleet:
    def __init__(self, stack: ExitStack, store: Path) -> None:
        self._stack = stack
        self._store = str(store)
        self.folder = store
        self.p, self.d = self.side("prefill"), self.side("decode")

    def side(self, role: str, block_tokens: int = BLOCK) -> Side:
        backend = registry.load("shm")
        self._stack.callback(backend.close)
        where = layout(block_tokens=block_tokens)
        return side(self._stack, role, ROW.protocol, backend, where, store=self._store)

    def answer(self, text: str, id: str = "c1-1") -> list[int]:
        return tokens_of(Crossing(ROW, self.p, self.d).answer(text, GREEDY, id))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as stack:
        yield Fleet(stack, tmp_path)


@pytest.fixture(scope="module")
def right() -> list[int]:
    alone = engine()
    alone.core.start()
    tokens = alone.tokens(ask("alone", TEXT, GREEDY))
    alone.core.stop()
    return tokens


def test_decode_takes_every_full_block_and_computes_the_rest(
    fleet: Fleet, right: list[int]
) -> None:
    assert fleet.answer(TEXT) == right

    prompt = len(ask("", TEXT).prompt)
    assert fleet.d.stats.prompts_from_peer == prompt // BLOCK * BLOCK
    assert fleet.d.stats.prompts_computed == prompt % BLOCK
    assert fleet.d.connector.counters.transfers == fleet.p.connector.counters.sent == 1
    assert fleet.p.used() == fleet.d.used() == 0


def test_another_prompt_is_not_found(fleet: Fleet, right: list[int]) -> None:
    fleet.answer(FOREIGN)

    asked = ask("only-decode", TEXT, GREEDY)

    assert tokens_of(fleet.d.engine.answer(asked)) == right
    assert fleet.d.connector.counters.transfers == 1


def test_foreign_kv_under_a_prompts_name_changes_the_answer(fleet: Fleet, right: list[int]) -> None:
    """The negative control: it is this KV that decode answers from."""
    fleet.p.engine.answer(ask("ours", TEXT, GREEDY))
    ours = sorted(fleet.folder.iterdir())
    fleet.p.engine.answer(ask("foreign", FOREIGN, GREEDY))
    foreign = sorted(set(fleet.folder.iterdir()) - set(ours))
    for mine, other in zip(ours, foreign, strict=True):
        mine.write_bytes(other.read_bytes())

    assert tokens_of(fleet.d.engine.answer(ask("decode", TEXT, GREEDY))) != right


def test_a_torn_file_fails_the_load_and_strands_no_page(fleet: Fleet) -> None:
    fleet.p.engine.answer(ask("ours", TEXT, GREEDY))
    for file in fleet.folder.iterdir():
        file.write_bytes(file.read_bytes()[:-1])

    last = fleet.d.engine.answer(ask("decode", TEXT, GREEDY))[-1]

    assert last.refusal is not None
    assert "is no block of this store" in last.refusal.message
    assert fleet.d.connector.counters.failed == 1
    assert fleet.d.used() == 0


def test_a_salt_keeps_tenants_apart(fleet: Fleet) -> None:
    """On other stores hashes may collide across salts (vllm-project/vllm#52617)."""

    def salted(id: str, salt: str) -> Request:
        return replace(ask(id, TEXT, GREEDY), body={"cache_salt": salt})

    fleet.p.engine.answer(salted("one", "tenant a"))

    fleet.d.engine.answer(salted("other", "tenant b"))
    assert fleet.d.connector.counters.transfers == 0
    fleet.d.engine.answer(salted("same", "tenant a"))
    assert fleet.d.connector.counters.transfers == 1


def test_engines_whose_blocks_differ_find_nothing_of_each_other(
    fleet: Fleet, right: list[int]
) -> None:
    fleet.p.engine.answer(ask("ours", TEXT, GREEDY))
    other = fleet.side("decode", block_tokens=8)

    assert tokens_of(other.engine.answer(ask("decode", TEXT, GREEDY))) == right
    assert other.connector.counters.transfers == 0


def test_a_client_that_leaves_while_decode_reads_strands_no_page(fleet: Fleet) -> None:
    fleet.p.engine.answer(ask("ours", TEXT, GREEDY))
    with fleet.d.engine.resting():
        fleet.d.core.submit(ask("leaver", TEXT, GREEDY))
        fleet.d.core.abort("leaver")

    assert fleet.d.engine.answers("leaver")["leaver"][-1].finish is Finish.ABORT
    assert fleet.d.used() == 0


def test_the_salts_of_names_are_told_apart_to_the_last_character() -> None:
    where = layout(blocks=4)
    blocks = NamedBlocks(where, "m", [memoryview(bytearray(where.total_bytes))])

    names = {blocks.names(range(BLOCK), salt)[0] for salt in ("", "?", "\ud800", "\ud801")}

    assert len(names) == 4
