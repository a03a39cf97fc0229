"""The shape of OpenAI's two older endpoints: chunks, a chunk with the usage, [DONE]."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from pdgate.engine.api.answer import AnswerChoice, AnswerShape
from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.api.service import EngineService
from pdgate.engine.api.usage import AnswerUsage
from pdgate.protocols import sse
from pdgate.protocols.errors import GatewayError


class OpenAIShape(AnswerShape):
    def __init__(self, service: EngineService, ask: ParsedRequest, wire_id: str) -> None:
        super().__init__(service, ask, wire_id)
        self._begun: set[int] = set()
        self._connector = service.core.connector
        self._no_usage = {"usage": None} if ask.include_usage else {}

    @abstractmethod
    def first_chunks(self) -> list[dict[str, Any]]:
        """Chunks that come before all others."""

    @abstractmethod
    def chunks(self, choice: AnswerChoice, first: bool) -> list[dict[str, Any]]:
        """A piece of a choice; `first` of this choice."""

    @abstractmethod
    def last(self) -> dict[str, Any]:
        """A chunk without choices, to carry the usage."""

    @abstractmethod
    def collected(self, choices: Sequence[AnswerChoice]) -> dict[str, Any]:
        """The whole answer without the usage."""

    def opening(self) -> list[bytes]:
        return [sse.event(chunk | self._no_usage) for chunk in self.first_chunks()]

    def piece(self, choice: AnswerChoice) -> list[bytes]:
        if choice.without_chunk and choice.index not in self._begun:
            return []
        chunks = self.chunks(choice, choice.index not in self._begun)
        self._begun.add(choice.index)
        if choice.kv_transfer_params is not None and chunks:
            # In the chunk with the finish reason, as vLLM 0.33 has it.
            chunks[-1] |= {"kv_transfer_params": choice.kv_transfer_params}
        return [sse.event(chunk | self._no_usage) for chunk in chunks]

    def closing(self, usage: AnswerUsage) -> list[bytes]:
        if not self.ask.include_usage:
            return [sse.DONE]
        return [sse.event(self.last() | {"usage": usage.as_openai()}), sse.DONE]

    def broken(self, error: GatewayError) -> list[bytes]:
        return [sse.event(error.as_openai()), sse.DONE]

    def whole(self, choices: Sequence[AnswerChoice], usage: AnswerUsage) -> dict[str, Any]:
        answer = self.collected(choices) | {"usage": usage.as_openai()}
        params = choices[0].kv_transfer_params
        if self._connector is None:
            return answer | {"kv_transfer_params": params}
        return self._connector.written(answer, params, self.ask.prompts[0])
