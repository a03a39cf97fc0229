"""Fields read of an answer, to know whether it is whole, and of a chunk. All else passes unread."""

from typing import Any, Final

import msgspec

from pdgate.protocols.call import Raw

GAVE_UP = ("abort", "error")
"""finish_reason of a request that the engine did not finish.

Source: vLLM 0.32.0, v1/engine/__init__.py, FinishReason.
"""


RECOMPUTED: Final = "recomputed"
"""stop_reason beside the finish_reason "stop": the engine had no room for the call's KV and let it go unfinished.

Source: vllm-ascend at 182b75e, vllm_ascend/core/recompute_scheduler.py, RecomputeScheduler._add_recomputed_outputs;
its proxy asks again (examples/disaggregated_prefill_v1/load_balance_proxy_layerwise_server_example.py).
"""


def let_go(stop_reason: Any, stop: object) -> bool:
    """Whether it says so; `stop` is the call's own, as a stop string is repeated as the reason."""
    if stop_reason != RECOMPUTED:
        return False
    return stop is None or RECOMPUTED.encode() not in (
        bytes(stop) if isinstance(stop, Raw) else msgspec.json.encode(stop)
    )


class Choice(msgspec.Struct):
    index: int = 0
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None

    @property
    def only_opens(self) -> bool:
        """Whether it names the speaker's role, and no more."""
        delta = self.delta
        if self.finish_reason is not None or delta is None or not delta.get("role"):
            return False
        return not any(found for name, found in delta.items() if name != "role")


class Chunk(msgspec.Struct):
    """
    Attributes:
        error: An engine's last word, in place of all else.
        object: "error" where an older engine reports one.
    """

    choices: list[Choice] = []
    error: Any = None
    object: Any = None

    @property
    def is_error(self) -> bool:
        return bool(self.error) or self.object == "error"


class Ended(msgspec.Struct):
    index: int = 0
    finish_reason: str | None = None
    stop_reason: Any = None


class EndingChunk(msgspec.Struct):
    """A chunk without what its choices say: to skip that takes a third of reading it."""

    choices: list[Ended] = []
    error: Any = None
    object: Any = None


class Whole(msgspec.Struct):
    """An answer that is no stream; every one has its choices.

    Attributes:
        usage: As it was written, for `usage.counts_in`; empty for none.
    """

    choices: list[Ended]
    usage: msgspec.Raw = msgspec.Raw()


class WithChoices(msgspec.Struct):
    """Of `Whole` what need not be raw."""

    choices: list[Ended]


class End(msgspec.Struct):
    """What a response and a message say of their end, where neither is a stream."""

    status: Any = None
    stop_reason: Any = None
    usage: Any = None
    output: Any = None

    @property
    def is_under_way(self) -> bool:
        """Whether the response runs in the background."""
        return self.status in ("queued", "in_progress")

    @property
    def gave_up(self) -> bool:
        """Whether the engine ended a response by itself: by status, or with no token generated."""
        if self.status in ("cancelled", "failed"):
            return True
        if self.is_under_way:
            return False
        usage = self.usage
        return isinstance(usage, dict) and usage.get("output_tokens") == 0 and not self.output


class Event(msgspec.Struct):
    """The payload of an event that has a type.

    Attributes:
        type: Its name, where it has none beside it.
        response: Of an event that repeats it.
        delta, usage: Of the end of a message.
    """

    type: Any = None
    response: End | None = None
    delta: Any = None
    usage: Any = None


read_chunk = msgspec.json.Decoder(Chunk).decode
read_ending_chunk = msgspec.json.Decoder(EndingChunk).decode
read_whole = msgspec.json.Decoder(Whole).decode
read_end = msgspec.json.Decoder(End).decode
read_event = msgspec.json.Decoder(Event).decode
