"""Sound as a prompt: this engine's model hears each byte of it as one token, and goes on with what it heard.

It makes no sense of it, but says the same of the same sound, in as many pieces as its tokens come.

    heard(service, sound, wire_id) --> texts, one for each output of the core; then its usage is known
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Final

from pdgate.engine.api import completions
from pdgate.engine.api.service import EngineService, raise_refusal

MOST_HEARD: Final = 64
"""Tokens of a prompt: the beginning of a sound is as good as all of it."""
SAID_TOKENS: Final = 8


class HeardSound:
    """What the model says to a sound, as it says it.

    Attributes:
        prompt_tokens, completion_tokens: So far.
    """

    def __init__(self, service: EngineService, sound: bytes, wire_id: str) -> None:
        """Raises EngineDead."""
        prompt = [byte % service.model.config.vocab_size for byte in sound[:MOST_HEARD]] or [0]
        body: Mapping[str, Any] = {
            "prompt": prompt,
            "max_tokens": SAID_TOKENS,
            "temperature": 0,
            "ignore_eos": True,
        }
        self.prompt_tokens = len(prompt)
        self.completion_tokens = 0
        self._mailbox = service.submit(completions.read(service, dict(body)), wire_id)

    async def texts(self) -> AsyncGenerator[str, None]:
        """Raises what the core refused."""
        try:
            while not self._mailbox.done:
                _, output = await self._mailbox.next()
                raise_refusal(output)
                self.completion_tokens += len(output.tokens)
                if output.text:
                    yield output.text
        finally:
            self._mailbox.close()

    def usage(self) -> dict[str, int]:
        count = self.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": count[0],
            "completion_tokens": count[1],
            "total_tokens": sum(count),
        }
