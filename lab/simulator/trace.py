"""Trace: its calls, one JSON object a line, in the order of their times.

    {"timestamp": 3000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 14]}
    {..., "media": 2, "priority": 7}

    timestamp       milliseconds since the trace began
    input_length    tokens of the prompt
    output_length   tokens of the answer
    hash_ids        one for each block of BLOCK_TOKENS of the prompt, the last maybe not full;
                    equal ids are equal prefixes, up to and with that block
    media           pictures and the like; none if it is not there
    priority        0, most urgent, to 7; ordinary if it is not there

Source: the traces published with Mooncake (Qin et al., FAST 2025), kvcache-ai/Mooncake,
FAST25-release/traces.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Annotated, Final

import msgspec

from pdgate.protocols.media import MOST_ITEMS
from pdgate.protocols.priority import LEAST_URGENT, MOST_URGENT, ORDINARY

BLOCK_TOKENS: Final = 512

_SCATTER: Final = 0x9E3779B97F4A7C15
"""An odd number, by which numbers are multiplied modulo 2^64: distinct ones stay so, and become
as scattered as the hashes of a real prompt, which tables of the prefix index rely on."""

_MASK: Final = (1 << 64) - 1


class BadTrace(ValueError):
    """A sentence that names the file, and the line if it is one."""


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One call to come.

    Attributes:
        at: Seconds since the start.
        blocks: Hashes of the prompt's full blocks, each of the prefix that ends with it.
        media: Pictures and the like, which are encoded before the prompt is read.
        urgency: MOST_URGENT to LEAST_URGENT.
    """

    at: float
    prompt_tokens: int
    answer_tokens: int
    blocks: tuple[int, ...]
    media: int = 0
    urgency: int = ORDINARY


class _TraceLine(msgspec.Struct, frozen=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]]
    media: Annotated[int, msgspec.Meta(ge=0, le=MOST_ITEMS)] = 0
    priority: Annotated[int, msgspec.Meta(ge=MOST_URGENT, le=LEAST_URGENT)] = ORDINARY


_decode = msgspec.json.Decoder(_TraceLine).decode


def read(path: Path) -> list[TraceCall]:
    """Raises BadTrace."""
    try:
        with path.open("rb") as lines:
            asks = list(_asks(path, lines))
    except FileNotFoundError:
        raise BadTrace(f"there is no trace {path}") from None
    except OSError as error:
        raise BadTrace(f"the trace {path} cannot be read: {error.strerror}") from None
    if not asks:
        raise BadTrace(f"the trace {path} has no calls")
    return asks


def _asks(path: Path, lines: Iterable[bytes]) -> Iterator[TraceCall]:
    latest = 0.0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = _decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadTrace(f"{path}, line {number}: {error}") from None
        if one.timestamp < latest:
            raise BadTrace(f"{path}, line {number}: it is earlier than the line before it")
        full = one.input_length // BLOCK_TOKENS
        if len(one.hash_ids) < full:
            raise BadTrace(
                f"{path}, line {number}: {len(one.hash_ids)} hash_ids, "
                f"but {one.input_length} tokens have {full} full blocks"
            )
        latest = one.timestamp
        yield TraceCall(
            one.timestamp / 1000,
            one.input_length,
            # Even a call for nothing is over with a first token at the earliest.
            max(1, one.output_length),
            tuple(hashed(block) for block in one.hash_ids[:full]),
            one.media,
            one.priority,
        )


def hashed(number: int) -> int:
    return (number + 1) * _SCATTER & _MASK


def faster(asks: Sequence[TraceCall], factor: float) -> list[TraceCall]:
    """The same calls, coming so many times as fast."""
    return [replace(ask, at=ask.at / factor) for ask in asks]


def in_batches(asks: Sequence[TraceCall], share: float, random: Random) -> list[TraceCall]:
    """The same calls, that share of which, drawn at random, are of the least urgency."""
    return [replace(ask, urgency=LEAST_URGENT) if random.random() < share else ask for ask in asks]


def copied(asks: Sequence[TraceCall], copies: int, random: Random) -> list[TraceCall]:
    """Calls of so many populations of users, each of which does the same at another time.

    They share no prefixes, and each is ahead by some part of the trace's length, the end of
    which goes on with its beginning.
    """
    if copies == 1:
        return list(asks)
    length = asks[-1].at
    several: list[TraceCall] = []
    for population in range(copies):
        ahead = random.uniform(0, length)
        # Any 64-bit number is as good a hash as any other, as long as they stay distinct.
        other = random.getrandbits(64)
        several += (
            [
                replace(
                    ask, at=(ask.at + ahead) % length, blocks=tuple(b ^ other for b in ask.blocks)
                )
                for ask in asks
            ]
            if population
            else asks
        )
    several.sort(key=lambda ask: ask.at)
    return several
