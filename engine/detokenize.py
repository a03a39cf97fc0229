"""Tokens -> text, as they come.

A character may take several tokens, and what a token reads as may hang on the one before
it. So the text of a window of tokens is compared with and without the newest ones, and
nothing goes out while the window ends in half a character.

Source: the method of vLLM's slow incremental detokenizer (0.32.0, v1/engine/detokenizer.py).
"""

from collections.abc import Sequence

from pdgate.engine.model.tokenizer import Tokenizer

CONTEXT_TOKENS = 5
# UTF-8 takes four bytes at most; a longer wait is not for a character.
LONGEST_WAIT_TOKENS = 8
HALF = "�"


class Detokenizer:
    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._window = list(prompt[-CONTEXT_TOKENS:])
        self._read = len(self._window)

    def feed(self, token: int) -> str:
        """What can be read now. Half a character at the very end is never said, as in vLLM."""
        self._window.append(token)
        known = self._tokenizer.decode(self._window[: self._read])
        text = self._tokenizer.decode(self._window)
        waits = len(self._window) - self._read <= LONGEST_WAIT_TOKENS
        if len(text) <= len(known) or (text.endswith(HALF) and waits):
            return ""
        self._window = self._window[-max(len(self._window) - self._read, CONTEXT_TOKENS) :]
        self._read = len(self._window)
        return text[len(known) :]


class StopText:
    """Ends a text at the first of some strings, and holds back what might become one."""

    def __init__(self, stops: Sequence[str], include: bool) -> None:
        self._stops = [stop for stop in stops if stop]
        self._include = include
        self._held = ""

    def feed(self, text: str, check: bool = True) -> tuple[str, str | None]:
        """What may go out, and the string that ended the text, if one did."""
        self._held += text
        found = [(self._held.find(stop), stop) for stop in self._stops] if check else []
        if hits := [(at, stop) for at, stop in found if at >= 0]:
            at, stop = min(hits)
            out = self._held[: at + len(stop) if self._include else at]
            self._held = ""
            return out, stop
        cut = len(self._held) - self._maybe_begun()
        out, self._held = self._held[:cut], self._held[cut:]
        return out, None

    def flush(self) -> str:
        out, self._held = self._held, ""
        return out

    def _maybe_begun(self) -> int:
        """Characters at the end that a stop string could begin with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
