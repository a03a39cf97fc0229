"""Clients that ask without a pause for as long as a block lasts; it fails if one call did.

with Callers(gateway, 20).asking() as callers:
    ...
    callers.wait_for(4)
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from threading import Event

from tests.end_to_end.reference.fleet import Gateway

TOKENS = 8
PROMPT = "To be, or not to be, that is the question"


def ask(gateway: Gateway, prompt: str = PROMPT, tokens: int = TOKENS) -> str:
    """Raises what the official client raises for anything but a whole answer."""
    with gateway.openai().completions.create(
        model="pdgate-tiny",
        prompt=prompt,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    ) as events:
        choices = [event.choices[0] for event in events if event.choices]
    assert choices[-1].finish_reason == "length"
    return "".join(choice.text for choice in choices)


class Callers:
    """
    Args:
        many: How many calls there are at any time.
        prompts: Asked in turn; the same one always has the same answer.
    """

    def __init__(
        self,
        gateway: Gateway,
        many: int,
        *,
        prompts: tuple[str, ...] = (PROMPT,),
        tokens: int = TOKENS,
    ) -> None:
        self.answers: list[tuple[str, str]] = []
        self._gateway = gateway
        self._many = many
        self._prompts = prompts
        self._tokens = tokens
        self._turn = count()
        self._enough = Event()

    @contextmanager
    def asking(self) -> Iterator["Callers"]:
        with ThreadPoolExecutor(self._many) as pool:
            callers = [pool.submit(self._ask) for _ in range(self._many)]
            try:
                yield self
            finally:
                self._enough.set()
            for caller in callers:
                caller.result()
        assert len(set(self.answers)) == len({prompt for prompt, _ in self.answers})

    def wait_for(self, more: int) -> None:
        """Until so many calls more have ended."""
        goal = len(self.answers) + more
        self._gateway.process.wait_until(
            lambda: len(self.answers) >= goal or None, f"{more} more answers", seconds=60
        )

    def _ask(self) -> None:
        while not self._enough.is_set():
            prompt = self._prompts[next(self._turn) % len(self._prompts)]
            self.answers.append((prompt, ask(self._gateway, prompt, self._tokens)))
