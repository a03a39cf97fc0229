"""What the prefix index takes: time for a call and for an engine's report, memory for a block.

    python -m benchmarks.prefix [--json FILE] [--trace FILE]

A fleet of 8 and one of 1,000 instances are sent conversations that begin with one of a few system
prompts, which every instance has read; then calls of 128 KB come, the long turns of such
conversations. `look` is `matched`, `update` is `routed`, `stored` and `lost` what an engine says of
one block at a prompt's end. Times are of the wall, so that what else the machine does shows in the last column
first. Memory is counted by Python itself (tracemalloc) beside the index's own count.

With a trace (the one published with Mooncake, hash_ids of 512 tokens) the index also takes that,
in four blocks for each of the trace's, as calls' bytes would come; without it the report says so.
"""

import argparse
import json
import sys
import tracemalloc
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from time import perf_counter_ns
from typing import Final

from pdgate.protocols.call import CHAT, Call, encode, parse_object
from pdgate.scheduling.prefix.index import BLOCK_BYTES, PrefixIndex, hashed

FLEETS: Final = (8, 1000)
SYSTEM_PROMPTS: Final = 4
SYSTEM_BLOCKS: Final = 16
TURN_BLOCKS: Final = (4, 40)
"""Least and most, of a turn with its answer."""
CALL_BLOCKS: Final = 256
CALLS: Final = 4000
EVENTS_A_SECOND: Final = 10_000
ENOUGH_BYTES: Final = 4 << 30
TRACE: Final = Path(__file__).parents[2] / "shared" / "traces" / "conversation_trace.jsonl"
TRACE_PARTS: Final = 4

OWN_CODE: Final = "*/scheduling/prefix/*"


def call_of(blocks: Sequence[int], tokens: int | None = None) -> Call:
    return Call(
        "c", "c-1", CHAT, {}, prompt_tokens=tokens or 128 * len(blocks), blocks=array("Q", blocks)
    )


class Conversations:
    """Prompts that go on from earlier ones, or begin with a system prompt."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.systems = [self._said(SYSTEM_BLOCKS) for _ in range(SYSTEM_PROMPTS)]
        self._open: list[list[int]] = []

    def _said(self, count: int) -> list[int]:
        return [self._random.getrandbits(64) for _ in range(count)]

    def next(self) -> list[int]:
        going_on = bool(self._open) and self._random.random() < 0.6
        before = self._random.choice(self._open if going_on else self.systems)
        prompt = [*before, *self._said(self._random.randint(*TURN_BLOCKS))]
        if len(prompt) < CALL_BLOCKS:
            self._open.append(prompt)
        return prompt

    def long(self) -> list[int]:
        """A call of CALL_BLOCKS, of which the beginning is known."""
        before = self._random.choice(self._open)
        return [*before, *self._said(CALL_BLOCKS - len(before))]


class Times:
    def __init__(self) -> None:
        self.taken: list[int] = []

    def __enter__(self) -> None:
        self._began = perf_counter_ns()

    def __exit__(self, *_: object) -> None:
        self.taken.append(perf_counter_ns() - self._began)

    def at(self, share: float) -> float:
        """Microseconds."""
        return sorted(self.taken)[int(share * (len(self.taken) - 1))] / 1000


def hashing() -> Times:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x" * CALL_BLOCKS * BLOCK_BYTES}],
    }
    call, taken = Call("c", "c-1", CHAT, parse_object(encode(body))), Times()
    for _ in range(500):
        with taken:
            hashed(call)
    return taken


def taught(instances: int, random: Random) -> tuple[PrefixIndex, Conversations]:
    """An index in which every instance has what its share of the calls has left there."""
    index, conversations = PrefixIndex(max_bytes=ENOUGH_BYTES), Conversations(random)
    for number in range(instances):
        for system in conversations.systems:
            index.routed(call_of(system), f"engine-{number}")
    for _ in range(max(CALLS, 10 * instances)):
        index.routed(call_of(conversations.next()), f"engine-{random.randrange(instances)}")
    return index, conversations


def memory(instances: int) -> tuple[float, float]:
    """Bytes for a block, as Python counts them and as the index does."""
    tracemalloc.start()
    index, _ = taught(instances, Random(instances))
    own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, OWN_CODE)])
    tracemalloc.stop()
    held = sum(statistic.size for statistic in own.statistics("filename"))
    return held / index.blocks, index.bytes / index.blocks


def times(instances: int) -> dict[str, Times]:
    random = Random(instances)
    index, conversations = taught(instances, random)
    look, update, stored, lost = Times(), Times(), Times(), Times()
    for _ in range(CALLS):
        blocks, instance_id = conversations.long(), f"engine-{random.randrange(instances)}"
        call = call_of(blocks)
        with look:
            index.matched(call)
        with update:
            index.routed(call, instance_id)
        with lost:
            index.lost(instance_id, blocks, CALL_BLOCKS - 1)
        with stored:
            index.stored(instance_id, blocks, CALL_BLOCKS - 1)
    return {"look": look, "update": update, "stored": stored, "lost": lost}


def traced(path: Path, instances: int = 16) -> tuple[int, float, float]:
    """Blocks that the index knows after the trace, bytes for each, share of tokens found again.

    The calls take turns, so that the share is what chance gives, not what a policy could.
    """
    index = PrefixIndex(max_bytes=ENOUGH_BYTES)
    for number, (blocks, tokens) in enumerate(_calls(path)):
        index.routed(call_of(blocks, tokens), f"engine-{number % instances}")
    return index.blocks, index.bytes / index.blocks, index.cached_tokens / index.read_tokens


def _calls(path: Path) -> Iterator[tuple[list[int], int]]:
    for line in path.read_text().splitlines():
        said = json.loads(line)
        blocks = [
            id_ * TRACE_PARTS + part for id_ in said["hash_ids"] for part in range(TRACE_PARTS)
        ]
        yield blocks, said["input_length"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefix")
    parser.add_argument("--json", type=Path, help="where the figures go as well")
    parser.add_argument("--trace", type=Path, default=TRACE)
    given = parser.parse_args()

    figures: dict[str, object] = {}
    print(f"{'microseconds':<28}{'p50':>9}{'p90':>9}{'p99':>9}")
    of_all = {"hashing 128 KB": hashing()}
    for instances in FLEETS:
        of_all |= {f"{what}, {instances} engines": one for what, one in times(instances).items()}
    for what, one in of_all.items():
        figures[what] = {"p50_us": one.at(0.5), "p90_us": one.at(0.9), "p99_us": one.at(0.99)}
        print(f"{what:<28}{one.at(0.5):>9.1f}{one.at(0.9):>9.1f}{one.at(0.99):>9.1f}")
    of_two = [of_all[f"{said}, {FLEETS[-1]} engines"].at(0.5) for said in ("stored", "lost")]
    share = sum(of_two) / 2 * EVENTS_A_SECOND / 1e6
    figures["core_share_of_reports"] = share
    print(f"{EVENTS_A_SECOND:,} reports a second take {share:.1%} of a core")
    for instances in FLEETS:
        held, counted = memory(instances)
        figures[f"bytes_of_a_block_{instances}"] = {"held": held, "counted": counted}
        print(
            f"a block, {instances} engines: {held:.1f} bytes, and {counted:.1f} by the index's count"
        )
    if given.trace.exists():
        blocks, counted, found = traced(given.trace)
        figures["trace"] = {"blocks": blocks, "bytes_of_a_block": counted, "found_share": found}
        print(
            f"the trace: {blocks:,} blocks of {counted:.1f} bytes; taking turns finds {found:.1%}"
        )
    else:
        print(f"no trace at {given.trace}: nothing is said of it", file=sys.stderr)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
