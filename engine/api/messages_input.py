"""A call of Anthropic's Messages API as the chat that it stands for.

    system, messages             messages; a tool's result is a message of its own, and its pictures another
    tools, tool_choice           the same, in a chat's spelling
    output_config.format         response_format
    stop_sequences, max_tokens   stop, max_completion_tokens

What is not known here stays as it came, kv_transfer_params too.

Source: vLLM 0.32.0, vllm/entrypoints/anthropic/serving.py, to_chat_completion_request(), _convert_image_source_to_url(),
_convert_user_tool_result(); protocol.py, AnthropicMessagesRequest.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pdgate.engine.api import fields
from pdgate.engine.api.fields import Body
from pdgate.protocols.errors import BadRequest

ROLES: Final = ("user", "assistant", "system")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_TRANSLATED: Final = frozenset(
    {"system", "messages", "tools", "tool_choice", "output_config", "stop_sequences", "max_tokens"}
)


def as_chat(body: Body) -> Body:
    """Raises BadRequest."""
    chat: dict[str, Any] = {key: body[key] for key in body.keys() - _TRANSLATED}
    if not body.get("model"):
        raise BadRequest("model is required", param="model")
    chat["messages"] = _messages(body)
    chat["max_completion_tokens"] = body.get("max_tokens")
    chat["stop"] = body.get("stop_sequences")
    if tools := body.get("tools"):
        chat["tools"] = _tools(tools)
    choice = fields.mapping(body, "tool_choice")
    if choice is not None:
        chat["tool_choice"] = _choice(choice)
        chat["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use")
    form = (fields.mapping(body, "output_config") or {}).get("format")
    if isinstance(form, Mapping):
        if form.get("type") != "json_schema":
            raise BadRequest("output_config.format must be a json_schema", param="output_config")
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    return chat


def _messages(body: Body) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    if system := _text(body.get("system")):
        found.append({"role": "system", "content": system})
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list of messages", param="messages")
    for message in messages:
        if not isinstance(message, Mapping) or message.get("role") not in ROLES:
            raise BadRequest(
                f"a message must be an object with a role of {', '.join(ROLES)}", param="messages"
            )
        found += _message(message["role"], message.get("content"))
    return found


def _message(role: str, content: Any) -> list[Mapping[str, Any]]:
    """A message, after the results of tools that are in it."""
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    blocks = _blocks(content)
    results = [
        message
        for block in blocks
        if block.get("type") == "tool_result"
        for message in _result(block)
    ]
    calls = [_call(block) for block in blocks if block.get("type") == "tool_use"]
    said = _content(blocks)
    if results and not said and not calls:
        return [*results]
    message: dict[str, Any] = {"role": role, "content": said}
    if calls:
        message["tool_calls"] = calls
    return [*results, message]


def _result(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = block.get("content")
    result = {
        "role": "tool",
        "tool_call_id": block.get("tool_use_id"),
        "content": _text(content),
    }
    images = [_image(each) for each in _blocks(content) if each.get("type") == "image"]
    return [result, {"role": "user", "content": images}] if images else [result]


def _content(blocks: Sequence[Mapping[str, Any]]) -> str | list[Mapping[str, Any]]:
    """Text, or parts of a chat where there are pictures between the texts."""
    if not any(block.get("type") == "image" for block in blocks):
        return _text(blocks)
    return [
        _image(block) if block["type"] == "image" else {"type": "text", "text": block.get("text")}
        for block in blocks
        if block.get("type") in ("image", "text")
    ]


def _image(block: Mapping[str, Any]) -> Mapping[str, Any]:
    source = fields.mapping(block, "source") or {}
    url = source.get("url")
    if source.get("type") != "url":
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    found = content if isinstance(content, list) else []
    return [block for block in found if isinstance(block, Mapping)]


def _call(block: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id"), "type": "function", "function": function}


def _text(content: Any) -> str:
    """Of text, or of the blocks that are text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return ""
    texts = [block.get("text") for block in content if isinstance(block, Mapping)]
    return "".join(text for text in texts if isinstance(text, str))


def _tools(found: Any) -> list[Mapping[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(tool, Mapping) for tool in found):
        raise BadRequest("tools must be a list of objects", param="tools")
    for tool in found:
        if "input_schema" not in tool:
            name = tool.get("name")
            raise BadRequest(f"tools: {name!r} has no input_schema", param="tools")
    return [
        {
            "type": "function",
            "function": {
                "name": tool.get("name"),
                "description": tool.get("description"),
                "parameters": tool["input_schema"],
            },
        }
        for tool in found
    ]


def _choice(choice: Body) -> Any:
    if choice.get("type") == "tool":
        return {"type": "function", "function": {"name": choice.get("name")}}
    found = _CHOICES.get(str(choice.get("type")))
    if found is None:
        raise BadRequest("tool_choice.type must be auto, any, tool or none", param="tool_choice")
    return found
