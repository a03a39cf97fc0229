"""tensorrt-llm: prefill samples the first token and keeps the KV, decode asks for it by id.

    prefill   context_only, disagg_request_id      ->  disaggregated_params in its choice, its prompt's ids at the top
    decode    generation_only, that word for word      goes on behind first_gen_tokens
              generation_only, ctx_info_endpoint       before prefill has answered (schedule_style 1)

The endpoint is what GET /server_info says, tcp://host:port. A request that ends with its first token keeps nothing.

Source: NVIDIA/TensorRT-LLM 00bb903, tensorrt_llm/serve/openai_disagg_service.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pdgate.engine.connector import Arrival, Keep, Load, Pages
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.protocols.dialects.tensorrt_llm import FIELD, FIRST_ID, TOKENS
from pdgate.transfer.messenger.source import FirstTokenSource, Source

MOST_ID = 2**63 - 1


class TensorRtLlmHandOver(TwoSided):
    takes_ranks: ClassVar = True
    hands_first_token: ClassVar = True

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        if arrival.body.get(FIELD) is None:
            return None
        params = read.fields(arrival.body, FIELD)
        together = read.integer(params, "schedule_style", 0, 1) == 1
        match params.get("request_type"):
            case "context_only":
                id = read.integer(params, "disagg_request_id", FIRST_ID, MOST_ID)
                return replace(self.keep_for(arrival.id, _key(id)), ticket=(id, together))
            case "generation_only":
                source = self._source(params, together)
                return self.load_from(source, len(arrival.prompt))
        raise ValueError("request_type must be context_only or generation_only")

    def _source(self, params: read.Fields, together: bool) -> Source:
        host, port = read.endpoint(params, "ctx_info_endpoint")
        key = _key(read.integer(params, "ctx_request_id", FIRST_ID, MOST_ID))
        if together:
            return Source(host, port, key, self.settings.lease_seconds)
        firsts = params.get("first_gen_tokens")
        if not isinstance(firsts, list) or len(firsts) > 1:
            raise ValueError("first_gen_tokens must be a list with one token at most")
        if not firsts:
            return Source(host, port, key, 0.0)
        first = read.integer({"first_gen_tokens": firsts[0]}, "first_gen_tokens", 0, 2**31)
        return FirstTokenSource(host, port, key, 0.0, first_token=first)

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        if isinstance(load.ticket, FirstTokenSource):
            self.core.sampled(request_id, load.ticket.first_token)
        super().start(request_id, load, pages, skip_tokens)

    def keeps(self, finish_reason: str) -> bool:
        return finish_reason == "length"

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        id, together = keep.ticket
        # Context first, decode hears it from the gateway.
        beside = first_token if together else None
        kept = super().kept(request_id, keep, pages, beside, finish_reason)
        if kept is None:
            return None
        ids = {"ctx_request_id": id, "disagg_request_id": id}
        firsts = [] if first_token is None else [first_token]
        return {**kept, **ids, "first_gen_tokens": firsts}

    def answer(self, request_id: str, pages: Pages) -> Mapping[str, Any]:
        return {"request_type": "context_only", "ctx_dp_rank": 0, **self.server_info()[FIELD]}

    def written(
        self, answer: dict[str, Any], params: Mapping[str, Any] | None, prompt: Sequence[int]
    ) -> dict[str, Any]:
        if params is None:
            return answer
        (choice,) = answer["choices"]
        return answer | {"choices": [choice | {FIELD: params}], TOKENS: list(prompt)}

    def server_info(self) -> Mapping[str, Any]:
        host, port = self.service_address
        bracketed = f"[{host}]" if ":" in host else host
        return {FIELD: {"ctx_info_endpoint": f"tcp://{bracketed}:{port}"}}


def _key(id: int) -> str:
    return f"trt {id}"
