"""The tools of a chat, and the calls that it must make.

The model is asked for JSON, which becomes calls in the answer:

    a tool by name    the arguments
    "required"        [{"name": ..., "parameters": ...}, ...]: one, or up to two
    "auto", "none"    nothing: a random model has no reason to call anything

Source: vLLM 0.32.0, vllm/tool_parsers/utils.py, get_json_schema_from_tools();
entrypoints/openai/chat_completion/protocol.py, check_tool_usage().
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pdgate.engine.api import fields
from pdgate.engine.api.fields import Body
from pdgate.engine.constrained import schema
from pdgate.engine.constrained.automaton import Either, Expression
from pdgate.protocols.errors import BadRequest

MOST_CALLS: Final = 2

NO_ARGUMENTS: Final = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """
    Attributes:
        parameters: JSON schema of an object.
    """

    name: str
    parameters: Any


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """Calls that an answer consists of.

    Attributes:
        named: The tool that the client chose; then the answer is its arguments alone.
        tools: Those that may be called.
        most: How many times.
    """

    named: str | None
    tools: tuple[Tool, ...]
    most: int = 1

    def expression(self) -> Expression:
        """Raises schema.Unsupported."""
        if self.named is not None:
            return _arguments(self.tools[0])
        one = [
            schema.object_of(
                [("name", schema.exactly(tool.name)), ("parameters", _arguments(tool))]
            )
            for tool in self.tools
        ]
        return schema.array_of(Either(tuple(one)), 1, self.most)


def forced(body: Body) -> ToolCalls | None:
    """The calls that a chat asks for; None if it leaves that to the model. Raises BadRequest."""
    choice = body.get("tool_choice")
    if choice in (None, "none", "auto"):
        return None
    tools = _all(body)
    if not tools:
        raise BadRequest("tool_choice asks for a call, and there are no tools", param="tools")
    if choice == "required":
        many = body.get("parallel_tool_calls") is not False
        return ToolCalls(None, tools, MOST_CALLS if many else 1)
    name = _name(choice)
    named = tuple(tool for tool in tools if tool.name == name)
    if not named:
        raise BadRequest(
            'tool_choice must be "none", "auto", "required", or name one of the tools: '
            '{"type": "function", "function": {"name": ...}}',
            param="tool_choice",
        )
    return ToolCalls(named[0].name, named[:1])


def _name(choice: Any) -> Any:
    if not isinstance(choice, Mapping) or choice.get("type") != "function":
        return None
    function = choice.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


def _all(body: Body) -> tuple[Tool, ...]:
    found = body.get("tools") or []
    if not isinstance(found, Sequence) or isinstance(found, str):
        raise BadRequest("tools must be a list", param="tools")
    return tuple(_tool(one) for one in found)


def _tool(found: Any) -> Tool:
    function = found.get("function") if isinstance(found, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if function is None or not isinstance(name, str) or found.get("type") != "function":
        raise BadRequest(
            "only functions can be called here: a tool must be "
            '{"type": "function", "function": {"name": ...}}',
            param="tools",
        )
    return Tool(name, fields.mapping(function, "parameters") or NO_ARGUMENTS)


def _arguments(tool: Tool) -> Expression:
    if tool.parameters.get("type", "object") != "object":
        raise schema.Unsupported(f"the parameters of {tool.name} must be an object")
    return schema.expression({"type": "object", **tool.parameters})
