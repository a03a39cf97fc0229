"""Delays and failures on purpose, so that what is beside the engine can be tested.

With a pace for decoding and for reading, steps take as long as on a GPU, which loads its
weights in each of them: a few prompt tokens ride along for nothing, many make a step longer.
"""

import os
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepPace:
    """How long a step takes at least.

    Attributes:
        prefill_seconds: A step that finishes prompts.
        token_seconds: A step that decodes.
        read_seconds: A step, for each prompt token that it reads.
    """

    prefill_seconds: float = 0.0
    token_seconds: float = 0.0
    read_seconds: float = 0.0

    def least_seconds(self, prompts: int, decodes: int, read: int = 0) -> float:
        """`prompts`: finished; `read`: their tokens in this step, and those of others."""
        return max(
            self.prefill_seconds if prompts else 0.0,
            self.token_seconds if decodes else 0.0,
            self.read_seconds * read,
        )


class Faults:
    """
    Args:
        fail_rate: Share of requests that are refused with a 500, 0..1.
        die_after: The process ends without a word when it has taken in so many requests
            and gets another.
    """

    def __init__(self, fail_rate: float = 0.0, die_after: int | None = None) -> None:
        self._fail_rate = fail_rate
        self._requests_left = die_after
        self._random = random.Random()

    def strikes(self) -> bool:
        """A request came: shall it fail? May not return."""
        if self._requests_left is not None:
            if self._requests_left == 0:
                os._exit(1)
            self._requests_left -= 1
        return self._random.random() < self._fail_rate
