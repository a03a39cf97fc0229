"""What it costs that each push names the memory that it goes to, for prompts of 2,048 blocks and one prefill with three decodes.

    python -m benchmarks.descriptors [--rounds N]

Every decode engine grants its regions to prefill, says so in its message, and prefill checks what it reads. If descriptors were
known from before (once per region, from a directory), a message would have block ids alone, and nothing would be granted.
If there were a descriptor for each block, it would have 2,048 of them. All sizes are of real messages, all times of the code that engines run.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Final, TypeVar

import msgspec

from pdgate.transfer import registry
from pdgate.transfer.messenger import asked, messages, shards
from pdgate.transfer.messenger.incoming import Immediates, IncomingPages, ReceivingMemory
from pdgate.transfer.messenger.shape import ALL, PageShape
from pdgate.transfer.messenger.source import Source, Target

BLOCKS: Final = 2048
BLOCK_TOKENS: Final = 16
DECODES: Final = 3
LAYERS: Final = 32
KV_HEADS: Final = 8
PEER: Final = "00" * 16
Result = TypeVar("Result")
CASES: Final = (("shm", 1), ("shm", 8), ("tcp", 1), ("tcp", 8))


@dataclass(frozen=True, slots=True)
class DescriptorFigures:
    """Of one push; times in microseconds, medians of the rounds.

    Attributes:
        message, ids: Bytes of the message, and of one without descriptors.
        a_block: What the message would have with a descriptor for each block and region.
        grants: Decode says who may write where, and takes it back.
        says: The rest of what decode does until the message is bytes.
        hears: Prefill reads the message and checks it.
        descriptors: Of that, what reading and checking descriptors takes.
    """

    message: int
    ids: int
    a_block: int
    grants: float
    says: float
    hears: float
    descriptors: float


def shape_of(tp: int) -> PageShape:
    """Of an 8B model, but for rows of one number: what is named and checked does not depend on it."""
    return PageShape("m", LAYERS, BLOCKS, KV_HEADS, BLOCK_TOKENS, 1, "float16", 2, tp=tp)


@contextmanager
def decode(backend_name: str, tp: int) -> Iterator[ReceivingMemory]:
    shape = shape_of(tp)
    with ExitStack() as stack:
        backend = registry.load(backend_name)
        stack.callback(backend.close)
        regions = [backend.allocate(shape.region_bytes(number)) for number in range(tp)]
        yield ReceivingMemory(backend, regions, shape, ALL, Immediates(), None)


def measure(backend_name: str, tp: int, rounds: int) -> DescriptorFigures:
    """Raises what a push raises that does not fit."""
    # In no order: a cache that has been used for long has few neighbours.
    ids = [(number * 1021) % BLOCKS for number in range(BLOCKS)]
    source = Source("127.0.0.1", 1, "a-request-of-this-length-0123456789", 30.0, push=True)
    target = Target(ids, BLOCKS * BLOCK_TOKENS, 0)
    with ExitStack() as stack:
        decodes = [stack.enter_context(decode(backend_name, tp)) for _ in range(DECODES)]
        shape = decodes[0].shape
        said, granted, heard, named = [], [], [], []
        for _ in range(rounds):
            for memory in decodes:
                incoming = IncomingPages(memory, source, target, None, time.monotonic() + 30)
                took, push = timed(partial(incoming.message, "engine", PEER))
                closed, _ = timed(incoming.close)
                # What is there besides grants: a message of the same words.
                wrote, data = timed(partial(messages.plain, push))
                said.append(wrote)
                granted.append(took + closed)
                read, again = timed(partial(decoded, data))
                checked, _ = timed(partial(asked.check, again, shape, backend_name, None))
                heard.append(read + checked)
                looked, _ = timed(partial(shards.remotes, again.descriptors, shape, backend_name))
                bare = msgspec.structs.replace(again, descriptors=[])
                few = messages.plain(bare)
                without, _ = timed(partial(decoded, few))
                named.append(looked + max(0.0, read - without))
        one = len(msgspec.msgpack.encode(push.descriptors[0]))
        size, fewer = len(data), len(few)
        return DescriptorFigures(
            message=size,
            ids=fewer,
            a_block=fewer + one * BLOCKS * tp,
            grants=median(granted),
            says=median(said),
            hears=median(heard),
            descriptors=median(named),
        )


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Microseconds, and what came of it."""
    began = time.perf_counter_ns()
    result = work()
    return (time.perf_counter_ns() - began) / 1000, result


def decoded(data: bytes) -> messages.Push:
    """As prefill reads it, behind its length."""
    push = msgspec.msgpack.decode(data[4:], type=messages.Message)
    assert isinstance(push, messages.Push)
    return push


def rows(rounds: int) -> Iterator[str]:
    yield (
        f"{'':10} {'message':>8} {'ids':>8} {'a block':>12} {'grants':>8} {'says':>8} {'hears':>8} {'named':>8}"
    )
    for backend_name, tp in CASES:
        found = measure(backend_name, tp, rounds)
        yield (
            f"{backend_name} tp {tp:<3} {found.message:8} {found.ids:8} {found.a_block:12} "
            f"{found.grants:8.0f} {found.says:8.0f} {found.hears:8.0f} {found.descriptors:8.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.descriptors")
    parser.add_argument("--rounds", type=int, default=30)
    asked_for = parser.parse_args()
    print("bytes of a push of 2,048 blocks, and microseconds at its two ends (medians)")
    for row in rows(asked_for.rounds):
        print(row, flush=True)


if __name__ == "__main__":
    main()
