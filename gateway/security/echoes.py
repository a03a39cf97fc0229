"""Echoes: what the gateway added to a body, kept out of what clients read of a refusal.

An engine that finds a body wrong may repeat it: pydantic puts it under `input` of each error, and
servers tell that as JSON (FastAPI, SGLang) or as Python writes it, within a sentence (vLLM before it
left containers out, entrypoints/serve/exception_handling/handlers/validation.py of 0.32). The
client knows what it sent, and what it did not send (`kv_transfer_params`, `bootstrap_room`,
prefill's `max_tokens` of 1) is no business of its own. So what was repeated is left out.
"""

import json
import re
from typing import Any, Final

from pdgate.protocols.errors import EngineRejected

LEFT_OUT: Final = "..."
MOST_BYTES: Final = 64 << 10
"""Of a refusal that is read for this: 10 ms of JSON. A longer one is passed on only if it repeats nothing."""

_REPEATS: Final = re.compile(r"(['\"])input\1: ?(?=\{)")
# Strings as Python writes them are one step each, whatever brackets are in them.
_STEP: Final = re.compile(r"'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\"|[{}]", re.DOTALL)


def without_echo(error: EngineRejected) -> EngineRejected:
    """The same error, without the body that it repeats; itself if it repeats none."""
    if b"input" not in error.body:
        return error
    if len(error.body) > MOST_BYTES:
        return _told(error, _sentence("the engine refused the call, and repeats too much of it"))
    try:
        found = json.loads(error.body)
        left = _left(found)
    except ValueError:
        text = error.body.decode(errors="replace")
        left_text = _of_text(text)
        return error if left_text == text else _told(error, left_text.encode())
    except RecursionError:
        return _told(error, _sentence("the engine refused the call, in too deep a nesting"))
    return error if left == found else _told(error, json.dumps(left).encode())


def _told(error: EngineRejected, body: bytes) -> EngineRejected:
    return EngineRejected(error.answer_status, error.headers, body, at=error.at)


def _sentence(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "invalid_request_error"}}).encode()


def _left(found: Any) -> Any:
    if isinstance(found, dict):
        return {
            name: LEFT_OUT if name == "input" and isinstance(value, dict) else _left(value)
            for name, value in found.items()
        }
    if isinstance(found, list):
        return [_left(one) for one in found]
    return _of_text(found) if isinstance(found, str) else found


def _of_text(text: str) -> str:
    left, begin = [], 0
    while (repeats := _REPEATS.search(text, begin)) is not None:
        left.append(text[begin : repeats.end()])
        begin = _end(text, repeats.end())
    return LEFT_OUT.join([*left, text[begin:]])


def _end(text: str, begin: int) -> int:
    """Behind the bracket that closes the one at `begin`; the end of a text that was cut."""
    depth = 0
    for step in _STEP.finditer(text, begin):
        match step[0]:
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return step.end()
    return len(text)
