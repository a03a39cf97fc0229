"""KV map: which rank holds which heads, and where; exchanged when P and D first meet.

    {"version": "0.1",
     "heads": {"0": [0, 1], "1": [2, 3]},        rank -> KV heads
     "pdgate": {"shape": {...},                  what else has to agree
                "memory": [...],                 a region per rank
                ...}}                            P: its ring; D: its immediates

"version" and "heads" are the reference's; ranks are numbers there, and strings once JSON has
carried them, so they are numbers again as soon as they are here. What "pdgate" holds is what
the Neuron runtime knows without being told. Which heads go from which rank to which is the
planner's business (transfer/plan), and both ends work it out alike.

Source: AWS Neuron's vLLM V0 fork, nxdi_kv_map_utils.py, validate_and_load_kv_map().
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from pdgate.transfer import descriptors
from pdgate.transfer.base import Descriptor, TransferError
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.shape import PageShape, differences
from pdgate.transfer.plan.layout import KvLayout, LayoutOrder
from pdgate.transfer.plan.links import spread
from pdgate.transfer.plan.meeting import EngineReplica, Meeting
from pdgate.transfer.plan.memory import packed
from pdgate.transfer.plan.pair import Pair

VERSION: Final = "0.1"
OURS: Final = "pdgate"
MAX_TP: Final = 128


@dataclass(frozen=True, slots=True)
class KvMap:
    """
    Attributes:
        memory: Of each rank.
        extra: Of the one side: "ring" of P, "immediate" of D.
    """

    shape: PageShape
    memory: Sequence[Descriptor]
    extra: Mapping[str, Any]

    def ring(self) -> Descriptor:
        """Raises HandOverError."""
        try:
            return descriptors.from_data(self.extra.get("ring"))
        except ValueError as error:
            raise _bad(f"the ring is {error}") from None

    def immediate(self) -> int:
        """Raises HandOverError."""
        found = self.extra.get("immediate")
        if type(found) is not int or not 0 <= found <= 2**32 - MAX_TP:
            raise _bad("its immediate is none")
        return found


def as_data(shape: PageShape, memory: Sequence[Descriptor], **extra: Any) -> dict[str, Any]:
    """What JSON can carry."""
    ranks = layout_of(shape).ranks(0)
    return {
        "version": VERSION,
        "heads": {str(rank.tp): list(layout_of(shape).heads(rank)) for rank in ranks},
        OURS: {
            "shape": msgspec.to_builtins(shape),
            "memory": [descriptors.as_data(one) for one in memory],
            **extra,
        },
    }


def heads_of(data: object) -> dict[int, list[int]]:
    """Rank -> heads, with ranks as numbers again. Raises HandOverError."""
    match data:
        case {"version": version, "heads": dict(heads)}:
            if version != VERSION:
                raise _bad(f"its version is {version!r}, not {VERSION!r}")
            try:
                return {int(rank): [int(head) for head in held] for rank, held in heads.items()}
            except (TypeError, ValueError):
                raise _bad("its heads are none") from None
    raise _bad("it has no version and heads")


def from_data(data: object, ours: PageShape, backend: str) -> KvMap:
    """The peer's. Raises HandOverError, with both sides' numbers if they do not fit."""
    heads = heads_of(data)
    assert isinstance(data, dict), "heads_of let it pass"
    match data.get(OURS):
        case {"shape": said, "memory": list(memory), **extra}:
            pass
        case _:
            raise HandOverError(
                Why.UNSUPPORTED, "the peer moves KV by the Neuron runtime, which is not here"
            )
    try:
        shape = msgspec.convert(said, PageShape)
        found = [descriptors.from_data(one) for one in memory]
    except (msgspec.ValidationError, ValueError) as error:
        raise _bad(str(error)) from None
    if wrong := differences(ours, shape):
        raise HandOverError(Why.WRONG_SHAPE, wrong)
    layout = layout_of(shape)
    if heads != {rank.tp: list(layout.heads(rank)) for rank in layout.ranks(0)}:
        raise HandOverError(Why.WRONG_SHAPE, f"heads {heads} are not tp {shape.tp}'s")
    if len(found) != shape.tp:
        raise HandOverError(Why.WRONG_SHAPE, f"{len(found)} regions for tp {shape.tp}")
    for one in found:
        if one.backend != backend:
            raise HandOverError(Why.UNSUPPORTED, f"backend {backend} here, {one.backend} there")
    return KvMap(shape, found, {str(name): one for name, one in extra.items()})


def layout_of(shape: PageShape) -> KvLayout:
    """Raises HandOverError."""
    if not 0 < shape.tp <= MAX_TP:
        raise HandOverError(Why.WRONG_SHAPE, f"tp {shape.tp} is not from 1 to {MAX_TP}")
    try:
        return KvLayout(
            model=shape.model,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            planes=2,
            dtype=shape.dtype,
            item_bytes=shape.item_bytes,
            order=LayoutOrder.HND,
            block_tokens=shape.block_tokens,
            stages=(shape.layers,),
            tp=shape.tp,
        )
    except ValueError as error:
        raise HandOverError(Why.WRONG_SHAPE, str(error)) from None


class Scheme:
    """What goes from which rank of P to which of D."""

    def __init__(
        self,
        prefill: PageShape,
        decode: PageShape,
        prefill_bytes: Sequence[int],
        decode_bytes: Sequence[int],
    ) -> None:
        """`_bytes`: of each rank's region. Raises HandOverError."""
        self.layers = prefill.layers
        self.block_tokens = prefill.block_tokens
        try:
            self._meeting = Meeting(_end(prefill, prefill_bytes), _end(decode, decode_bytes))
        except TransferError as error:
            raise HandOverError(Why.WRONG_SHAPE, str(error)) from None

    def pairs(self, uid: str) -> list[Pair]:
        """Pairs in the order in which both ends post them. `uid` spreads the load over copies."""
        choose = spread(uid)
        ranks = self._meeting.destination.layout.ranks(0)
        return [pair for rank in ranks for pair in self._meeting.to(rank, choose)]


def _end(shape: PageShape, region_bytes: Sequence[int]) -> EngineReplica:
    layout = layout_of(shape)
    ranks = list(layout.ranks(0))
    memories = {rank: packed(layout, rank, shape.blocks) for rank in ranks}
    return EngineReplica(layout, 0, memories, dict(zip(ranks, region_bytes, strict=True)))


def _bad(what: str) -> HandOverError:
    return HandOverError(Why.BROKEN, f"the peer's KV map: {what}")
