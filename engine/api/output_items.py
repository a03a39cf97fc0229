"""The items of a response: a message, or calls of functions; and the events that tell of them.

Source: vLLM 0.32.0, vllm/entrypoints/openai/responses/streaming_events.py.
"""

from collections.abc import Sequence
from typing import Any

from pdgate.engine.api.pieces import Arguments, CallBegins, Piece, Text
from pdgate.engine.api.service import new_id

Event = dict[str, Any]


class Items:
    """
    Attributes:
        done: Items that are complete, as they are in the answer.
    """

    def __init__(self) -> None:
        self.done: list[dict[str, Any]] = []
        self._open: dict[str, Any] | None = None
        self._written = ""

    def add(self, pieces: Sequence[Piece]) -> list[Event]:
        """The events that say what is new, without their numbers."""
        events: list[Event] = []
        for piece in pieces:
            match piece:
                case Text(text):
                    if self._open is None:
                        events += self._begin_message()
                    events.append(
                        self._event("output_text.delta", content_index=0, delta=text, logprobs=[])
                    )
                    self._written += text
                case CallBegins(_, call_id, name):
                    events += [*self.close(), *self._begin_call(call_id, name)]
                case Arguments(_, text):
                    events.append(self._event("function_call_arguments.delta", delta=text))
                    self._written += text
        return events

    def close(self) -> list[Event]:
        """Ends the item that is open, if one is."""
        item, written = self._open, self._written
        if item is None:
            return []
        if item["type"] == "message":
            part = _part(written)
            item = {**item, "status": "completed", "content": [part]}
            events = [
                self._event("output_text.done", content_index=0, text=written, logprobs=[]),
                self._event("content_part.done", content_index=0, part=part),
            ]
        else:
            item = {**item, "status": "completed", "arguments": written}
            name = item["name"]
            events = [self._event("function_call_arguments.done", arguments=written, name=name)]
        events.append(self._event_of_item("output_item.done", item))
        self.done.append(item)
        self._open, self._written = None, ""
        return events

    def _begin_message(self) -> list[Event]:
        self._open = {
            "id": new_id("msg"),
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        return [
            self._event_of_item("output_item.added", self._open),
            self._event("content_part.added", content_index=0, part=_part("")),
        ]

    def _begin_call(self, call_id: str, name: str) -> list[Event]:
        self._open = {
            "id": new_id("fc"),
            "type": "function_call",
            "call_id": call_id,
            "name": name,
            "arguments": "",
            "status": "in_progress",
        }
        return [self._event_of_item("output_item.added", self._open)]

    def _event(self, what: str, **fields: Any) -> Event:
        assert self._open is not None
        at = {"item_id": self._open["id"], "output_index": len(self.done)}
        return {"type": f"response.{what}", **at, **fields}

    def _event_of_item(self, what: str, item: dict[str, Any]) -> Event:
        return {"type": f"response.{what}", "output_index": len(self.done), "item": item}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
