"""Counts tokens for the `usage` field."""

from dataclasses import dataclass, field
from typing import Any

from pdgate.engine.api.ask import ParsedRequest
from pdgate.engine.request import Output


@dataclass(slots=True)
class AnswerUsage:
    """
    Attributes:
        cached: Prompt index -> prompt tokens that were not computed for it.
    """

    ask: ParsedRequest
    completion_tokens: int = 0
    cached: dict[int, int] = field(default_factory=dict)

    def add(self, index: int, output: Output) -> None:
        self.completion_tokens += len(output.tokens)
        prompt = self.ask.prompt_of(index)
        # Choices of one prompt find each other's blocks; the first tells what was there.
        if index % self.ask.choices == 0:
            self.cached[prompt] = max(self.cached.get(prompt, 0), output.cached_tokens)

    def as_openai(self) -> dict[str, Any]:
        prompt_tokens = sum(len(prompt) for prompt in self.ask.prompts)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self.cached.values())},
        }
