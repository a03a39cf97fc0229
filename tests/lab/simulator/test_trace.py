"""Traces: what is read, and what is said of what cannot be read."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pdgate.lab.simulator.synthetic import conversations
from pdgate.lab.simulator.trace import BLOCK_TOKENS, BadTrace, copied, faster, read


def written(folder: Path, *lines: dict[str, Any] | str) -> Path:
    path = folder / "trace.jsonl"
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    return path


def line(at: float = 0, tokens: int = 1100, blocks: tuple[int, ...] = (0, 1, 2)) -> dict[str, Any]:
    return {
        "timestamp": at, "input_length": tokens, "output_length": 5, "hash_ids": blocks,
    }  # fmt: skip


def test_a_call_has_its_time_in_seconds_and_a_hash_for_each_full_block(tmp_path: Path) -> None:
    (ask,) = read(written(tmp_path, line(at=1500)))

    assert (ask.at, ask.prompt_tokens, ask.answer_tokens) == (1.5, 1100, 5)
    assert len(ask.blocks) == 1100 // BLOCK_TOKENS == len(set(ask.blocks))


def test_equal_ids_are_equal_blocks(tmp_path: Path) -> None:
    one, other = read(written(tmp_path, line(), line(blocks=(0, 7, 8))))

    assert one.blocks[0] == other.blocks[0]
    assert one.blocks[1] != other.blocks[1]


@pytest.mark.parametrize(
    "broken",
    [
        "{",
        '{"timestamp": 0}',
        line(at=-1),
        line(tokens=0),
        line(tokens=5000),
        {**line(), "hash_ids": ["x"]},
        "\udcff".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_a_broken_line_is_named_with_its_number(tmp_path: Path, broken: Any) -> None:
    path = written(tmp_path, line(), line(), broken)

    with pytest.raises(BadTrace, match=r"trace\.jsonl, line 3: "):
        read(path)


def test_a_line_out_of_order_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"line 2: it is earlier"):
        read(written(tmp_path, line(at=10), line(at=9)))


def test_an_absent_or_empty_file_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="there is no trace"):
        read(tmp_path / "none")
    with pytest.raises(BadTrace, match="has no calls"):
        read(written(tmp_path))


def test_faster_calls_are_the_same_calls(tmp_path: Path) -> None:
    asks = read(written(tmp_path, line(), line(at=3000)))

    assert [ask.at for ask in faster(asks, 2)] == [0, 1.5]


def test_populations_share_no_prefixes_but_have_their_own(tmp_path: Path) -> None:
    asks = read(written(tmp_path, line(), line(at=1000), line(at=2000)))

    three = copied(asks, 3, Random(1))

    assert len(three) == 9
    assert sorted(three, key=lambda ask: ask.at) == three
    assert len({ask.blocks for ask in three}) == 3


def test_made_up_conversations_repeat_what_was_said() -> None:
    asks = conversations(500, 3.0, Random(1))

    seen: set[int] = set()
    known = 0
    for ask in asks:
        known += sum(block in seen for block in ask.blocks)
        seen.update(ask.blocks)
    assert 0.2 < known / sum(len(ask.blocks) for ask in asks) < 0.6
    assert asks == conversations(500, 3.0, Random(1)) != conversations(500, 3.0, Random(2))
