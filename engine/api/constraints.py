"""Constraints of a call on its answer.

    response_format       {"type": "json_schema", "json_schema": {"schema": ...}},
                          {"type": "json_object"}
    structured_outputs    {"json": ...}, {"choice": [...]}, {"json_object": true}
    tool_choice           see tools.py; it goes before the others, as in vLLM

Other constraints are refused rather than ignored: an answer that does not keep to what was
asked looks like one that does.

Source: vLLM 0.32.0, vllm/sampling_params.py, StructuredOutputsParams;
entrypoints/openai/chat_completion/protocol.py, extract_structured_outputs().
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pdgate.engine.api import fields
from pdgate.engine.api.fields import Body
from pdgate.engine.api.service import EngineService
from pdgate.engine.api.tools import ToolCalls
from pdgate.engine.constrained import schema
from pdgate.engine.constrained.automaton import Either, Expression, Literal, TooBig
from pdgate.engine.constrained.grammar import Grammar
from pdgate.protocols.errors import BadRequest

FORMAT: Final = "response_format"
OUTPUTS: Final = "structured_outputs"
REMOVED: Final = (
    "guided_choice", "guided_decoding_backend", "guided_grammar", "guided_json", "guided_regex",
    "guided_whitespace_pattern",
)  # fmt: skip
"""vLLM took these out and ignores them since, with a warning that a client does not see."""

MOST_BYTES: Final = 64 << 10
"""Of what says what an answer has to be, as JSON."""


def grammar(service: EngineService, body: Body, calls: ToolCalls | None = None) -> Grammar | None:
    """Raises BadRequest."""
    try:
        return _wanted(service, body, calls)
    except RecursionError:
        raise BadRequest("what the answer has to be is nested too deeply") from None


def _wanted(service: EngineService, body: Body, calls: ToolCalls | None) -> Grammar | None:
    for name in REMOVED:
        if body.get(name) is not None:
            raise BadRequest(f"{name} is no more: ask with {OUTPUTS}", param=name)
    if calls is not None:
        return _compiled(service, calls.expression, repr(calls), "tools")
    wanted = fields.mapping(body, OUTPUTS) or {}
    asked = {key: value for key, value in wanted.items() if value not in (None, False)}
    found = fields.mapping(body, FORMAT) or {}
    if asked and found.get("type", "text") != "text":
        raise BadRequest(f"{FORMAT} and {OUTPUTS} cannot both be kept to", param=OUTPUTS)
    return _outputs(service, asked) if asked else _format(service, found)


def _format(service: EngineService, found: Body) -> Grammar | None:
    match found.get("type", "text"):
        case "text":
            return None
        case "json_object":
            return _compiled(service, schema.any_object, "json_object", FORMAT)
        case "json_schema":
            named = found.get("json_schema")
            if not isinstance(named, Mapping) or not isinstance(named.get("schema"), Mapping):
                raise BadRequest("json_schema must hold a schema", param=FORMAT)
            return _schema(service, named["schema"], FORMAT)
    raise BadRequest(f"{FORMAT}: this engine knows text, json_object, json_schema", param=FORMAT)


def _outputs(service: EngineService, asked: Body) -> Grammar:
    match list(asked.items()):
        case [("json_object", True)]:
            return _compiled(service, schema.any_object, "json_object", OUTPUTS)
        case [("json", found)]:
            return _schema(service, _parsed(found), OUTPUTS)
        case [("choice", [*texts])] if texts and all(isinstance(text, str) for text in texts):
            choice = Either(tuple(Literal(text.encode()) for text in texts))
            return _compiled(service, lambda: choice, f"choice {texts}", OUTPUTS)
    raise BadRequest(
        f"{OUTPUTS}: this engine knows one of json, choice, json_object", param=OUTPUTS
    )


def _parsed(found: Any) -> Any:
    """A schema may come as text."""
    try:
        return json.loads(found) if isinstance(found, str) else found
    except ValueError as error:
        raise BadRequest(f"{OUTPUTS}.json is not valid JSON: {error}", param=OUTPUTS) from None


def _schema(service: EngineService, found: Any, param: str) -> Grammar:
    return _compiled(service, lambda: schema.expression(found), json.dumps(found), param)


def _compiled(
    service: EngineService, expression: Callable[[], Expression], key: str, param: str
) -> Grammar:
    if len(key) > MOST_BYTES:
        raise BadRequest(
            f"what the answer has to be is longer than {MOST_BYTES} bytes", param=param
        )
    model = service.model
    try:
        return service.grammars.get(key, model.tokenizer, model.config.vocab_size, expression)
    except (schema.Unsupported, TooBig) as error:
        raise BadRequest(str(error), param=param) from None
