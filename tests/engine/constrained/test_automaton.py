"""Which byte strings an expression is."""

import pytest

from pdgate.engine.constrained import automaton
from pdgate.engine.constrained.automaton import (
    Automaton,
    ByteOf,
    Chain,
    Either,
    Expression,
    Literal,
    Repeat,
    TooBig,
)

DIGIT = ByteOf(frozenset(b"0123456789"))


def reads(expression: Expression, text: bytes) -> bool:
    machine = Automaton(expression)
    state: automaton.State | None = machine.start
    for byte in text:
        if state is None:
            return False
        state = machine.follow(state, byte)
    return state is not None and machine.accepts(state)


@pytest.mark.parametrize(
    ("expression", "those", "others"),
    [
        (Literal(b"ab"), [b"ab"], [b"", b"a", b"abc", b"b"]),
        (Repeat(DIGIT, 1, 3), [b"1", b"123"], [b"", b"1234", b"a"]),
        (Repeat(DIGIT, 0, 1), [b"", b"7"], [b"77"]),
        (Either((Literal(b"ab"), Literal(b"ac"))), [b"ab", b"ac"], [b"a", b"abac"]),
        (
            Chain((Literal(b"<"), Repeat(Either((Literal(b"x"), DIGIT)), 2, 2), Literal(b">"))),
            [b"<x1>", b"<xx>"],
            [b"<x>", b"<x1", b"<x11>"],
        ),
    ],
)
def test_an_expression_is_what_it_says(
    expression: Expression, those: list[bytes], others: list[bytes]
) -> None:
    assert all(reads(expression, text) for text in those)
    assert not any(reads(expression, text) for text in others)


def test_the_next_bytes_are_those_that_can_be_followed() -> None:
    machine = Automaton(Either((Literal(b"ab"), Literal(b"cd"))))

    assert machine.next_bytes(machine.start) == set(b"ac")
    assert not machine.accepts(machine.start)


def test_a_small_expression_of_a_huge_automaton_is_refused() -> None:
    expression: Expression = Literal(b"x")
    for _ in range(6):
        expression = Repeat(expression, 10, 10)

    with pytest.raises(TooBig):
        Automaton(expression)
