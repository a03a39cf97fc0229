"""A body becomes a call, or an error for the client; and a call's body can be sent on."""

import json

from pdgate.forwarders.base import several_prompts
from pdgate.forwarders.other_apis import why_whole
from pdgate.forwarders.prompt import prompt_alone
from pdgate.forwarders.vllm_nixl import VllmNixl
from pdgate.gateway.apis.stored import placed
from pdgate.gateway.intake import Intake
from pdgate.gateway.request_headers import RequestHeaders
from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, encode, parse_object
from pdgate.protocols.errors import BadRequest

SEEDS = (
    b'{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}',
    b'{"model": "m", "prompt": [[1, 2], [3]], "max_tokens": 1, "n": 2, "x": {"y": [1.5e3, null]}}',
    b'{"input": [], "tools": [{"type": "x"}, 1], "previous_response_id": 1, "request_id": "a://"}',
    b'{"prompt": "\\ud800", "temperature": NaN}',
    b'\xff\xfe{\x00"\x00m\x00"\x00:\x001\x00}\x00',
    b'{"kv_transfer_params": {"do_remote_prefill": true}, "vllm_xargs": {"remote_host": "h"}}',
    b"[" * 2000,
    b'{"a":' * 2000,
)
_INTAKE = Intake(1 << 20)
_HEADS = RequestHeaders([(b"content-type", b"application/json"), (b"authorization", b"Bearer x")])


def check(data: bytes) -> None:
    for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES):
        try:
            call = _INTAKE.call(path, _HEADS, data, "call-1")
            _read_as_forwarders_do(call)
        except BadRequest:
            continue
        sent = encode(call.body)
        assert parse_object(sent).keys() == call.body.keys()
        json.loads(sent)


def _read_as_forwarders_do(call: Call) -> None:
    several_prompts(call)
    for name in ("max_tokens", "max_completion_tokens", "n", "logprobs", "stream_options", "stop"):
        call.value(name)
    encode(prompt_alone(call, kv_transfer_params={"do_remote_decode": True}))
    if call.api is not None:
        why_whole(VllmNixl(), call)
        placed(call, ())
