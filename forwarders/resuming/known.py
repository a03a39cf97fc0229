"""Dedup of a resumed stream: what the client has already, taken out of the next engine's events.

It begins where text and tokens were known to be together, which may lie before what was said
last; the ids show that it says the same.
"""

from collections.abc import Sequence
from typing import Any


class Known:
    def __init__(self, ids: Sequence[int], text: str) -> None:
        self._ids = list(ids)
        self._text = text

    def cut(self, choice: dict[str, Any]) -> bool:
        """Whether anything new is left in it. Raises ValueError if it says something else."""
        if not (self._ids or self._text):
            return True
        ids = choice.get("token_ids") or []
        count = min(len(ids), len(self._ids))
        finish = choice.get("finish_reason")
        if ids[:count] != self._ids[:count] or (finish and count < len(self._ids)):
            raise ValueError("another engine says something else")
        self._ids = self._ids[count:]
        choice["token_ids"] = ids[count:]
        if logprobs := choice.get("logprobs"):
            for name, entries in logprobs.items():
                if isinstance(entries, list):
                    logprobs[name] = entries[count:]
        text = self._cut_text(choice)
        return bool(ids[count:] or text or finish)

    def _cut_text(self, choice: dict[str, Any]) -> str:
        holder, name = (choice["delta"], "content") if "delta" in choice else (choice, "text")
        said: str = holder.get(name) or ""
        count = min(len(said), len(self._text))
        if said[:count] != self._text[:count]:
            raise ValueError("another engine reads its tokens in another way")
        self._text = self._text[count:]
        holder[name] = said[count:]
        return said[count:]
