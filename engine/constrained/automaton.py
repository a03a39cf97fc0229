"""Expressions over bytes, and the automaton that reads them.

An expression says which byte strings an answer may be. The automaton is an NFA that is made
deterministic as it is walked: a state is the set of NFA nodes one may be in.

    Chain((Literal(b"{"), Repeat(DIGIT, 1, 3), Literal(b"}")))     {7} {42} {100}
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

MOST_PARTS: Final = 16_000
"""Nodes, and expressions that they are made of; so many take 20 ms."""
MOST_ALTERNATIVES: Final = 64
"""Followed at once: a step costs 3 us for each, and a mask takes thousands of steps."""
MOST_STEPS_KEPT: Final = 8_192

_ALONE: Final = tuple(frozenset((byte,)) for byte in range(256))


class TooBig(ValueError):
    """The expression has more parts than are made for one answer, or more alternatives than are followed."""


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
    """Raises TooBig. Safe to walk from several threads: what it remembers is forgotten, and never changes."""

    def __init__(self, expression: Expression) -> None:
        self._spent = 0
        self._edges: list[list[tuple[frozenset[int], int]]] = []
        self._free: dict[int, list[int]] = {}
        begin = self._node()
        _check_alternatives(expression)
        self._end = self._add(expression, begin)
        self.start: State = self._closed({begin})
        self._after: dict[tuple[State, int], State | None] = {}

    def follow(self, state: State, byte: int) -> State | None:
        """Return the state after a byte; None where it may not come."""
        key = (state, byte)
        try:
            return self._after[key]
        except KeyError:
            pass
        reached = {
            target for node in state for values, target in self._edges[node] if byte in values
        }
        after = self._closed(reached) if reached else None
        if len(self._after) >= MOST_STEPS_KEPT:
            self._after.clear()
        self._after[key] = after
        return after

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
            for target in self._free.get(waiting.pop(), ()):
                if target not in found:
                    found.add(target)
                    waiting.append(target)
        return frozenset(found)

    def _node(self) -> int:
        self._spend()
        self._edges.append([])
        return len(self._edges) - 1

    def _spend(self) -> None:
        self._spent += 1
        if self._spent > MOST_PARTS:
            raise TooBig("too big: what an answer may be takes too many states")

    def _add(self, expression: Expression, begin: int) -> int:
        """Where one is after it. Alternatives begin at the same node, to which nothing leads back."""
        self._spend()
        match expression:
            case Literal(value):
                for byte in value:
                    begin = self._step(begin, _ALONE[byte])
                return begin
            case ByteOf(values):
                return self._step(begin, values)
            case Chain(items):
                for item in items:
                    begin = self._add(item, begin)
                return begin
            case Either(items):
                texts = [item.value for item in items if isinstance(item, Literal)]
                ends = self._tree(texts, begin)
                others = (item for item in items if not isinstance(item, Literal))
                ends += [self._add(item, begin) for item in others]
                return self._meet(ends)
            case Repeat(item, least, most):
                ends = [begin] if least == 0 else []
                for count in range(1, most + 1):
                    if isinstance(item, ByteOf):
                        begin = self._step(begin, item.values)
                    else:
                        begin = self._add(item, begin)
                    if count >= least:
                        ends.append(begin)
                return self._meet(ends)

    def _tree(self, texts: list[bytes], root: int) -> list[int]:
        """Texts that begin alike share their beginning, and are one alternative. Returns where they end."""
        after: dict[tuple[int, int], int] = {}
        ends: set[int] = set()
        for text in texts:
            node = root
            for byte in text:
                key = (node, byte)
                if key not in after:
                    after[key] = self._step(node, _ALONE[byte])
                node = after[key]
            ends.add(node)
        return sorted(ends)

    def _step(self, begin: int, values: frozenset[int]) -> int:
        target = self._node()
        self._edges[begin].append((values, target))
        return target

    def _meet(self, ends: list[int]) -> int:
        target = self._node()
        for end in ends:
            self._free.setdefault(end, []).append(target)
        return target


def _check_alternatives(expression: Expression) -> None:
    if _alternatives(expression, {}) > MOST_ALTERNATIVES:
        raise TooBig(f"too big: an answer may be more than {MOST_ALTERNATIVES} things at one place")


def _alternatives(expression: Expression, known: dict[int, int]) -> int:
    """Roughly the most nodes of a state. `known`: of parts by identity, since parts are shared."""
    found = known.get(id(expression))
    if found is None:
        match expression:
            case Either(items):
                others = [item for item in items if not isinstance(item, Literal)]
                found = (len(others) < len(items)) + sum(_alternatives(it, known) for it in others)
            case Chain(items):
                found = max((_alternatives(item, known) for item in items), default=1)
            case Repeat(item):
                found = _alternatives(item, known)
            case _:
                found = 1
        known[id(expression)] = found
    return found
