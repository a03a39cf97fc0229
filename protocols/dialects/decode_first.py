"""kv_transfer_params of decode-first: decode has its prompt computed by whoever is free.

    {"do_queued_prefill": true}    decode puts the prompt on the prefill queue
    nothing                        decode computes it itself

Ours; the idea is NVIDIA Dynamo's, whose decode decides by itself and tells nobody.
"""

from typing import Final

from pdgate.protocols.call import Json

FIELD: Final = "kv_transfer_params"
ASK: Final = "do_queued_prefill"
QUEUED: Final[Json] = {ASK: True}
