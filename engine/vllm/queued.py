"""The hand-over of a vLLM decode engine that may also put its prompts on a prefill queue.

    do_queued_prefill    the queue chooses P (hand_over/decode_first.py)
    anything else        as without a queue (dialects.py)

P needs nothing of this: what reaches it is vllm-kvt in batch. Its worker is a process beside
it (`pdgate prefill-worker`), which sees whether vLLM's API answers before it takes a prompt.
"""

from typing import ClassVar

from pdgate.engine.hand_over.decode_first import DecodeFirst
from pdgate.engine.vllm.dialects import Dialects


class QueuedDialects(DecodeFirst, Dialects):
    has_worker: ClassVar = False
    lends: ClassVar = False
