"""POST /generate: SGLang's own way to ask, by text or by token ids.

    {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 8, ...}, "return_logprob": true}
    {"text": ..., "output_ids": [...], "meta_info": {"finish_reason": ..., "output_token_logprobs": [[-0.1, 5, null]], ...}}

Several prompts or choices are answered by a list. An event of a stream has all of its output so far.

Source: SGLang at 001067f, srt/managers/io_struct.py (GenerateReqInput), srt/managers/tokenizer_manager.py
(_handle_batch_output), srt/sampling/sampling_params.py (SamplingParams), srt/managers/schedule_batch.py.
"""

from collections.abc import Sequence
from typing import Any, Final

from pdgate.engine.api import ask as asking
from pdgate.engine.api import fields
from pdgate.engine.api.answer import AnswerChoice, AnswerShape
from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.api.completions import prompts_and_texts
from pdgate.engine.api.fields import Body
from pdgate.engine.api.service import EngineService
from pdgate.engine.api.usage import AnswerUsage
from pdgate.engine.request import Finish
from pdgate.protocols import sse
from pdgate.protocols.errors import BadRequest, GatewayError

PATH: Final = "/generate"
DEFAULT_MAX_TOKENS: Final = 128


def read(service: EngineService, body: Body) -> ParsedRequest:
    """Raises BadRequest, UnknownModel."""
    by_ids = body.get("input_ids") is not None
    if by_ids == (body.get("text") is not None):
        raise BadRequest("either text or input_ids must be there", param="text")
    name = "input_ids" if by_ids else "text"
    prompts, texts = prompts_and_texts(service.model, body[name], name)
    sampling = fields.mapping(body, "sampling_params") or {}
    max_tokens = fields.integer(sampling, "max_new_tokens") or DEFAULT_MAX_TOKENS
    asking.check_length(service.model, prompts, max_tokens)
    count = None
    if fields.flag(body, "return_logprob"):
        count = asking.alternatives(body, "top_logprobs_num") or 0
    renamed = {"min_tokens": sampling.get("min_new_tokens"), "seed": sampling.get("sampling_seed")}
    return ParsedRequest(
        body=body,
        model=service.model_name(body.get("model")),
        prompts=prompts,
        texts=texts,
        sampling=asking.sampling({**sampling, **renamed}, max_tokens, count, None),
        choices=asking.choices(sampling),
        streams=fields.flag(body, "stream"),
        logprobs=count,
    )


class NativeShape(AnswerShape):
    def __init__(self, service: EngineService, ask: ParsedRequest, wire_id: str) -> None:
        super().__init__(service, ask, wire_id)
        self._so_far = [AnswerChoice(index) for index in range(len(ask.prompts) * ask.choices)]
        self._lists = len(self._so_far) > 1

    def opening(self) -> list[bytes]:
        return []

    def piece(self, choice: AnswerChoice) -> list[bytes]:
        whole = self._so_far[choice.index]
        whole.text += choice.text
        whole.tokens += choice.tokens
        whole.logprobs += choice.logprobs
        whole.finish, whole.stopped_by = choice.finish, choice.stopped_by
        index = {"index": choice.index} if self._lists else {}
        return [sse.event(self._output(whole, 0) | index)]

    def closing(self, usage: AnswerUsage) -> list[bytes]:
        return [sse.DONE]

    def broken(self, error: GatewayError) -> list[bytes]:
        reason = {"type": "abort", "message": str(error), "status_code": error.status}
        failed = {"text": "", "meta_info": {"id": self.wire_id, "finish_reason": reason}}
        return [sse.event(failed), sse.DONE]

    def whole(self, choices: Sequence[AnswerChoice], usage: AnswerUsage) -> Any:
        cached = usage.cached
        found = [self._output(one, cached.get(self.ask.prompt_of(one.index), 0)) for one in choices]
        return found if self._lists else found[0]

    def _output(self, choice: AnswerChoice, cached: int) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": f"{self.wire_id}-{choice.index}" if self._lists else self.wire_id,
            "finish_reason": self._reason(choice),
            "prompt_tokens": len(self.ask.prompts[self.ask.prompt_of(choice.index)]),
            "completion_tokens": len(choice.tokens),
            "cached_tokens": cached,
        }
        if self.ask.logprobs is not None:
            meta["output_token_logprobs"] = [
                [one.logprob, one.token, None] for one in choice.logprobs
            ]
            if self.ask.logprobs:
                meta["output_top_logprobs"] = [
                    [[number, token, None] for token, number in one.top] for one in choice.logprobs
                ]
        return {"text": choice.text, "output_ids": choice.tokens, "meta_info": meta}

    def _reason(self, choice: AnswerChoice) -> dict[str, Any] | None:
        match choice.finish:
            case None:
                return None
            case Finish.LENGTH:
                return {"type": "length", "length": len(choice.tokens)}
            case Finish.ABORT:
                return {"type": "abort", "message": "Aborted", "status_code": None}
        return {"type": "stop", "matched": choice.stopped_by}
