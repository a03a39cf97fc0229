"""kv_transfer_params of decode-first: any free prefill engine computes the prompt for decode.

    {"do_queued_prefill": true}    decode puts the prompt on the prefill queue
    nothing                        decode computes it itself

Ours; the idea is NVIDIA Dynamo's, whose decode decides by itself and tells no other component.
"""

from typing import Final

from pdgate.protocols.call import Json

FIELD: Final = "kv_transfer_params"
ASK: Final = "do_queued_prefill"
QUEUED: Final[Json] = {ASK: True}
