"""kv_transfer_params of the TPU's vLLM (TPUConnector): only prefill's answer has any.

Prefill is a producer for each request that ends by length, without a word of ours. Its answer

    {uuid, remote_block_ids, remote_host, remote_port}    the full blocks of the prompt, kept KEPT_SECONDS
    {}                                                    the prompt is under one block: nothing to fetch

goes to decode word for word; decode computes what is behind the last full block.

Source: vllm-project/tpu-inference b8692ff, tpu_inference/distributed/tpu_connector.py
(TPUConnectorScheduler.request_finished), utils.py (TPU_P2P_WAIT_PULL_TIMEOUT), examples/disagg/toy_proxy_server.py.
"""

from typing import Final

from pdgate.protocols.call import Json
from pdgate.protocols.dialects import handle

FIELD: Final = "kv_transfer_params"
NAMES: Final = ("uuid", "remote_block_ids", "remote_host", "remote_port")
KEPT_SECONDS: Final = 180.0


def kept(reply: Json) -> Json:
    """Fields that say where prefill keeps the blocks; {} where there is no full one. Raise EngineFailed."""
    return handle.found(reply, FIELD, *NAMES, empty=True)
