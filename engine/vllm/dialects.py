"""The hand-over of a vLLM engine: vllm-kvt and vllm-nixl at one KV port.

Which one a request means, its params say:

                prefill gets                          decode gets
    vllm-kvt    do_remote_decode                      remote_host, _port (, do_remote_prefill)
    vllm-nixl   do_remote_decode, do_remote_prefill   prefill's answer, which has both as well

With vllm-nixl decode reads. With vllm-kvt it is as the modes of both engines say:

    mode        as decode                   as prefill, for a decode that is written to
    pull        reads what prefill holds    -
    push        is written to               writes when the prompt is computed
    layerwise   is written to               writes each layer as soon as it is computed

So any two modes go together, and one service has all keys: no request is served twice.

A decode engine may also put its prompts on a prefill queue (QueuedDialects):

    do_queued_prefill    the queue chooses P (hand_over/decode_first.py)
    anything else        as above

P needs nothing of this: what reaches it is vllm-kvt in batch. Its worker is a process beside
it (`pdgate prefill-worker`), which sees whether vLLM's API answers before it takes a prompt.
What D's prefix cache has of the prompt is lent to P, which reads it if vLLM computes what cannot be read (settings.py).
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any, ClassVar, Final

from pdgate.engine.connector import Arrival, Load, Pages, Plan
from pdgate.engine.hand_over.decode_first import DecodeFirstHandOver
from pdgate.engine.hand_over.kvt import KvtHandOver
from pdgate.engine.hand_over.nixl import NixlHandOver
from pdgate.engine.vllm.answers import NO_FORM, Form
from pdgate.engine.vllm.intent import speaks_nixl
from pdgate.transfer.messenger.source import Source

STEP_SECONDS: Final = 5.0
"""P answers before its worker hears of the end of the prompt, which is in its next step."""


class DialectMode(StrEnum):
    PULL = "pull"
    PUSH = "push"
    LAYERWISE = "layerwise"


class Dialects(KvtHandOver, NixlHandOver):
    def __init__(self, mode: DialectMode, **parts: Any) -> None:
        # First: the service asks for plans as soon as it listens.
        self._mode = mode
        super().__init__(**parts)

    def plan(self, arrival: Arrival) -> Plan:
        nixl = speaks_nixl(arrival.params or {})
        plan = NixlHandOver.plan(self, arrival) if nixl else KvtHandOver.plan(self, arrival)
        return replace(plan, ticket=self._moved(plan.ticket)) if isinstance(plan, Load) else plan

    def answer_form(self) -> Form:
        """What does not change in the answers of vllm-nixl."""
        return dict(self.answer("", Pages((), 0)) or NO_FORM)

    def layer_computed(
        self, request_id: str, layer: int, block_ids: Sequence[int], tokens: int
    ) -> None:
        if self._mode is DialectMode.LAYERWISE:
            super().layer_computed(request_id, layer, block_ids, tokens)

    def _moved(self, source: Source) -> Source:
        """As our mode has it."""
        if source.push and self._mode is not DialectMode.PULL:
            return source
        wait_seconds = max(source.wait_seconds, STEP_SECONDS)
        return replace(source, push=False, wait_seconds=wait_seconds)


class QueuedDialects(DecodeFirstHandOver, Dialects):
    """Dialects of an engine of one worker: others could not know what the queue answered."""

    has_worker: ClassVar = False
