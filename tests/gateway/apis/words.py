"""What engines say on the routes besides chat and completions."""

import json
from typing import Any

from tests.support.fleet import BLOCKS

QUESTION: dict[str, Any] = {"model": "m", "input": "hi"}
MESSAGE: dict[str, Any] = {
    "model": "m",
    "max_tokens": 8,
    "messages": [{"role": "user", "content": "hi"}],
}
RESPONDED = {"id": "resp_1", "object": "response", "status": "completed", "output": []}
SAID = {"id": "msg_1", "type": "message", "content": [], "stop_reason": "end_turn"}
READ = {"kv_transfer_params": BLOCKS, "status": "incomplete", "stop_reason": "max_tokens"}
"""What prefill answers to either."""


def event(name: str, **fields: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


OPENED = (event("response.created", sequence_number=0), event("response.in_progress"))
DELTA = event("response.output_text.delta", sequence_number=4, delta="a")
COMPLETED = event("response.completed", sequence_number=5, response=RESPONDED)
STARTED = event("message_start", message={"id": "msg_1", "content": []})
BLOCK = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "a"})
STOPPED = event("message_delta", delta={"stop_reason": "end_turn"}) + event("message_stop")
