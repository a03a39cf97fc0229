"""Expressions over bytes, and the automaton that reads them.

An expression says which byte strings an answer may be. The automaton is an NFA that is made
deterministic as it is walked: a state is the set of NFA nodes one may be in.

    Chain((Literal(b"{"), Repeat(DIGIT, 1, 3), Literal(b"}")))     {7} {42} {100}
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

MOST_NODES: Final = 50_000


class TooBig(ValueError):
    """The expression has more nodes than are kept for one answer."""


@dataclass(frozen=True, slots=True)
class Literal:
    value: bytes


@dataclass(frozen=True, slots=True)
class ByteOf:
    values: frozenset[int]


@dataclass(frozen=True, slots=True)
class Chain:
    items: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Either:
    """One of them; there is at least one."""

    items: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """`least` to `most` times. Always bounded: the answers of a random model end, too."""

    item: "Expression"
    least: int
    most: int


Expression: TypeAlias = Literal | ByteOf | Chain | Either | Repeat
State: TypeAlias = frozenset[int]


class Automaton:
    """Raises TooBig. Safe to walk from several threads: what it remembers never changes."""

    def __init__(self, expression: Expression) -> None:
        self._edges: list[list[tuple[frozenset[int], int]]] = []
        self._free: list[list[int]] = []
        begin = self._node()
        self._end = self._add(expression, begin)
        self.start: State = self._closed({begin})
        self._after: dict[tuple[State, int], State | None] = {}

    def follow(self, state: State, byte: int) -> State | None:
        """None where the byte may not come."""
        key = (state, byte)
        if key not in self._after:
            reached = {
                target for node in state for values, target in self._edges[node] if byte in values
            }
            self._after[key] = self._closed(reached) if reached else None
        return self._after[key]

    def next_bytes(self, state: State) -> frozenset[int]:
        found: set[int] = set()
        for node in state:
            for values, _ in self._edges[node]:
                found |= values
        return frozenset(found)

    def accepts(self, state: State) -> bool:
        """The text may end here."""
        return self._end in state

    def _closed(self, nodes: set[int]) -> State:
        """With all that is reached without reading a byte."""
        found = set(nodes)
        waiting = list(nodes)
        while waiting:
            for target in self._free[waiting.pop()]:
                if target not in found:
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)

    def _node(self) -> int:
        if len(self._edges) == MOST_NODES:
            raise TooBig("too big: what an answer may be takes too many states")
        self._edges.append([])
        self._free.append([])
        return len(self._edges) - 1

    def _add(self, expression: Expression, begin: int) -> int:
        """Where one is after it."""
        match expression:
            case Literal(value):
                for byte in value:
                    begin = self._step(begin, frozenset((byte,)))
                return begin
            case ByteOf(values):
                return self._step(begin, values)
            case Chain(items):
                for item in items:
                    begin = self._add(item, begin)
                return begin
            case Either(items):
                ends = [self._add(item, self._branch(begin)) for item in items]
                return self._meet(ends)
            case Repeat(item, least, most):
                for _ in range(least):
                    begin = self._add(item, begin)
                ends = [begin]
                for _ in range(most - least):
                    begin = self._add(item, self._branch(begin))
                    ends.append(begin)
                return self._meet(ends)

    def _step(self, begin: int, values: frozenset[int]) -> int:
        target = self._node()
        self._edges[begin].append((values, target))
        return target

    def _branch(self, begin: int) -> int:
        node = self._node()
        self._free[begin].append(node)
        return node

    def _meet(self, ends: list[int]) -> int:
        target = self._node()
        for end in ends:
            self._free[end].append(target)
        return target
