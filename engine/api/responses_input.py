"""A call of /v1/responses as the chat that it stands for.

    instructions, input          messages, of whose parts input_image becomes image_url
    tools, tool_choice           the same, in a chat's spelling
    text.format                  response_format
    max_output_tokens            max_completion_tokens

What is not known here stays as it came, kv_transfer_params too.

Source: vLLM 0.32.0, vllm/entrypoints/openai/responses/utils.py, construct_input_messages();
protocol.py, ResponsesRequest.
"""

from collections.abc import Mapping
from typing import Any, Final

from pdgate.engine.api import fields
from pdgate.engine.api.fields import Body
from pdgate.protocols.errors import BadRequest

NOT_HERE: Final = {
    "background": "answers are not made in the background",
    "previous_response_id": "answers are not stored",
    "prompt": "prompt templates are not stored",
}
_TRANSLATED: Final = frozenset(
    {"input", "instructions", "text", "max_output_tokens", "tools", "tool_choice", "include"}
)


def as_chat(body: Body) -> Body:
    """Raises BadRequest."""
    for name, why in NOT_HERE.items():
        if body.get(name):
            raise BadRequest(f"{name}: {why} by this engine", param=name)
    if body.get("include"):
        raise BadRequest("include: this engine has nothing to include", param="include")
    chat: dict[str, Any] = {key: body[key] for key in body.keys() - _TRANSLATED}
    chat["messages"] = _messages(body)
    chat["max_completion_tokens"] = fields.integer(body, "max_output_tokens")
    if tools := body.get("tools"):
        chat["tools"] = _tools(tools)
    chat["tool_choice"] = _choice(body.get("tool_choice"))
    form = (fields.mapping(body, "text") or {}).get("format")
    if isinstance(form, Mapping) and form.get("type") == "json_schema":
        form = {"type": "json_schema", "json_schema": form}
    chat["response_format"] = form
    return chat


def _messages(body: Body) -> list[Mapping[str, Any]]:
    messages: list[Mapping[str, Any]] = []
    instructions, found = body.get("instructions"), body.get("input")
    if isinstance(instructions, str) and instructions:
        messages.append({"role": "system", "content": instructions})
    if isinstance(found, str):
        return [*messages, {"role": "user", "content": found}]
    if not isinstance(found, list) or not found:
        raise BadRequest("input must be text, or a list of items", param="input")
    read = [_message(item) for item in found]
    return [*messages, *(message for message in read if message is not None)]


def _message(item: Any) -> Mapping[str, Any] | None:
    """None for what is said to no model here: reasoning. Raises BadRequest."""
    if not isinstance(item, Mapping):
        raise BadRequest("an item of input must be an object", param="input")
    match item.get("type", "message"):
        case "message":
            return {"role": item.get("role"), "content": _content(item.get("content"))}
        case "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        case "function_call_output":
            output, call_id = _content(item.get("output")), item.get("call_id")
            return {"role": "tool", "content": output, "tool_call_id": call_id}
        case "reasoning":
            return None
        case kind:
            raise BadRequest(f"input: this engine does not know items of {kind!r}", param="input")


def _content(found: Any) -> Any:
    return [_part(part) for part in found] if isinstance(found, list) else found


def _part(part: Any) -> Any:
    if isinstance(part, Mapping) and part.get("type") == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return part


def _tools(found: Any) -> list[Mapping[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(tool, Mapping) for tool in found):
        raise BadRequest("tools must be a list of objects", param="tools")
    for tool in found:
        if tool.get("type") != "function":
            kind = tool.get("type")
            raise BadRequest(f"tools: this engine has no tool {kind!r}", param="tools")
    return [{"type": "function", "function": tool} for tool in found]


def _choice(found: Any) -> Any:
    if isinstance(found, Mapping) and found.get("type") == "function":
        return {"type": "function", "function": {"name": found.get("name")}}
    return found
