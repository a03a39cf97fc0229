"""Pieces of an answer as clients see them: text, or calls of tools.

A reader is fed the text as it comes and gives pieces, so that a stream says a call while its
arguments are still being written.
"""

import json
import re
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, TypeAlias

from pdgate.engine.api.tools import ToolCalls

# As tools.py has it written.
_HEAD: Final = re.compile(r'[\[,]\{"name":("(?:[^"\\]|\\.)*"),"parameters":')


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """
    Attributes:
        index: Of the call in its answer.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    index: int
    text: str


Piece: TypeAlias = Text | CallBegins | Arguments


@dataclass(slots=True)
class CollectedCall:
    """One call, collected.

    Attributes:
        arguments: JSON; a beginning of it if the answer was cut off.
    """

    id: str
    name: str
    arguments: str = ""

    @property
    def complete(self) -> bool:
        try:
            json.loads(self.arguments)
        except ValueError:
            return False
        return True


class PieceReader(ABC):
    @abstractmethod
    def feed(self, text: str) -> list[Piece]: ...


def reader(calls: ToolCalls | None) -> PieceReader:
    if calls is None:
        return _Texts()
    return _OneCall(calls.named) if calls.named is not None else _ManyCalls()


def collected(pieces: list[Piece]) -> tuple[str, list[CollectedCall]]:
    """The text, and the calls."""
    text, calls = "", list[CollectedCall]()
    for piece in pieces:
        match piece:
            case Text(more):
                text += more
            case CallBegins(_, id, name):
                calls.append(CollectedCall(id, name))
            case Arguments(index, more):
                calls[index].arguments += more
    return text, calls


class _Texts(PieceReader):
    def feed(self, text: str) -> list[Piece]:
        return [Text(text)] if text else []


class _OneCall(PieceReader):
    def __init__(self, name: str) -> None:
        self._name: str | None = name

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        pieces: list[Piece] = []
        if self._name is not None:
            pieces.append(CallBegins(0, new_id(), self._name))
            self._name = None
        return [*pieces, Arguments(0, text)]


class _ManyCalls(PieceReader):
    def __init__(self) -> None:
        self._held = ""
        self._index = -1
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        self._held += text
        while self._held:
            if self._depth == 0:
                head = _HEAD.search(self._held)
                if head is None or head.end() == len(self._held):
                    break
                self._index += 1
                pieces.append(CallBegins(self._index, new_id(), json.loads(head[1])))
                self._held = self._held[head.end() :]
            count = self._arguments()
            pieces.append(Arguments(self._index, self._held[:count]))
            self._held = self._held[count:]
        return pieces

    def _arguments(self) -> int:
        """How many characters belong to the object that is open, or begins here."""
        for count, character in enumerate(self._held, 1):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return count
        return len(self._held)


def new_id() -> str:
    """Make an id as vLLM does (renderers/chat_utils.py, make_tool_call_id)."""
    return f"chatcmpl-tool-{uuid.uuid4().hex}"
