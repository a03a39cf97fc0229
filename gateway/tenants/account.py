"""Account of one tenant: what it has taken, in numbers, and whether a call fits beneath its limits.

    enter     reserve what the call may take: its prompt, and the most that it may generate
    end       settle: what it took is counted, and what it had reserved beyond that is given back

A minute is a bucket that runs empty: what was taken leaks out at the limit's rate. A day is one of UTC; a day
and a total count what was taken, and what running calls hold.

A call that may take more than a whole limit needs half of it free and then takes all of it, so that one such
call can run at a time, and not none.

Numbers are 8-byte words, so that they can lie in memory that processes share: tokens, and of minutes
thousandths of tokens.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from pdgate.gateway.security.token_limits import GENERATED, PROMPT, TOKENS, TokenLimit, Window

AT: Final = 0
"""When the minutes were last looked at: ms of Unix time."""
SPENT: Final = 1
"""Three words: thousandths of tokens, of prompts, of generated ones."""
DAY: Final = 4
"""Which day it is: days of Unix time."""
OF_DAY: Final = 5
OF_ALL: Final = 10
KINDS: Final = 5
"""Words of a day, and of all days: prompt, cached, generated, calls, and what counts of prompts."""
WORDS: Final = 15

_GENERATED: Final = 2
_COUNTED: Final = 4
_MILLI: Final = 1000
_MOST: Final = 1 << 60
"""Of a word, whatever engines say that calls took."""
DAY_MS: Final = 86_400_000
BUSY_SECONDS: Final = 1.0
"""When to come back if running calls hold what is left: it is not known when one of them ends."""


class AccountWords(Protocol):
    """Words that can be read: a list, or memory."""

    def __getitem__(self, at: int, /) -> int: ...


class Numbers(AccountWords, Protocol):
    """The words of an account, which can be changed."""

    def __setitem__(self, at: int, number: int, /) -> None: ...


class TokensTaken(NamedTuple):
    """What a call took. `counted`: of its prompt, against the limits."""

    prompt: int = 0
    cached: int = 0
    generated: int = 0
    calls: int = 1
    counted: int = 0


class TokenShortage(NamedTuple):
    """A limit beneath which the call does not fit.

    Attributes:
        seconds: Until it may; None if time does not help.
        left: What may still be taken.
        held: Whether it would fit if running calls took nothing of what they hold.
    """

    limit: TokenLimit
    seconds: float | None
    left: int
    held: bool


class ReservedTokens(NamedTuple):
    """What a call holds: of its prompt and its answer, and of each minute's measure."""

    prompt: int
    generated: int
    minutes: tuple[int, int, int]


NOTHING: Final = ReservedTokens(0, 0, (0, 0, 0))


class AccountView(NamedTuple):
    """An account at one moment: its numbers, and what running calls hold of it (prompt, generated)."""

    numbers: Sequence[int]
    held: tuple[int, int]


class ReserveResult(NamedTuple):
    """What became of a call that wants to enter.

    Attributes:
        holder: Under which name Redis has what it holds; empty where this host alone has it.
    """

    result: ReservedTokens | TokenShortage
    view: AccountView
    holder: str = ""


def turn(numbers: Numbers, limits: Sequence[TokenLimit], now_ms: int) -> None:
    """Brings it to this moment: minutes leak, and a new day has nothing in it."""
    passed = max(0, now_ms - numbers[AT])
    numbers[AT] = now_ms
    leaks = [0, 0, 0]
    for limit in limits:
        if limit.window is Window.MINUTE:
            # Thousandths of tokens in a millisecond are tokens in a second.
            leaks[limit.measure] = limit.most * passed // 60
    minutes = _minutes(limits)
    for measure, leak in enumerate(leaks):
        at = SPENT + measure
        # Nothing is kept of a measure without a limit, which may have one later.
        numbers[at] = max(0, numbers[at] - leak) if measure in minutes else 0
    day = now_ms // DAY_MS
    if numbers[DAY] != day:
        numbers[DAY] = day
        for at in range(OF_DAY, OF_DAY + KINDS):
            numbers[at] = 0


def used(numbers: AccountWords, limit: TokenLimit) -> int:
    """Tokens of the limit's window, as it was turned to last, without what is held."""
    if limit.window is Window.MINUTE:
        return -(-numbers[SPENT + limit.measure] // _MILLI)
    first = OF_DAY if limit.window is Window.DAY else OF_ALL
    prompt, generated = numbers[first + _COUNTED], numbers[first + _GENERATED]
    return (prompt + generated, prompt, generated)[limit.measure]


def short(
    numbers: AccountWords,
    limits: Sequence[TokenLimit],
    needs: tuple[int, int],
    held: tuple[int, int],
    now_ms: int,
) -> TokenShortage | None:
    """The first limit beneath which a call does not fit.

    Args:
        needs: What it may take, and `held` what all running calls may: prompt, generated.
    """
    need, holds = _measures(*needs), _measures(*held)
    for limit in limits:
        taken, wanted = used(numbers, limit), _needed(need[limit.measure], limit.most)
        left = limit.most - taken
        if limit.window is Window.MINUTE:
            # What is held has been taken of it already.
            if wanted > left:
                seconds = (wanted - left) * 60 / limit.most
                return TokenShortage(limit, seconds, max(0, left), held=False)
        elif wanted > left:
            of_day = limit.window is Window.DAY
            midnight = (DAY_MS - now_ms % DAY_MS) / 1000 if of_day else None
            return TokenShortage(limit, midnight, max(0, left), held=False)
        elif wanted > left - holds[limit.measure]:
            return TokenShortage(
                limit, BUSY_SECONDS, max(0, left - holds[limit.measure]), held=True
            )
    return None


def reserve(
    numbers: Numbers, limits: Sequence[TokenLimit], needs: tuple[int, int]
) -> ReservedTokens:
    need, minutes = _measures(*needs), [0, 0, 0]
    for limit in limits:
        if limit.window is Window.MINUTE:
            part = min(need[limit.measure], limit.most)
            minutes[limit.measure] = part
            numbers[SPENT + limit.measure] += part * _MILLI
    return ReservedTokens(*needs, (minutes[TOKENS], minutes[PROMPT], minutes[GENERATED]))


def settle(
    numbers: Numbers, limits: Sequence[TokenLimit], reserved: ReservedTokens, taken: TokensTaken
) -> None:
    """Settle the minute's part of a reservation: what is held is not among the numbers."""
    for measure, more in enumerate(minutes_of(limits, reserved, taken)):
        at = SPENT + measure
        numbers[at] = min(max(0, numbers[at] + more), _MOST)
    for first in (OF_DAY, OF_ALL):
        for at, tokens in enumerate(taken, first):
            numbers[at] = min(numbers[at] + tokens, _MOST)


def minutes_of(
    limits: Sequence[TokenLimit], reserved: ReservedTokens, taken: TokensTaken
) -> tuple[int, int, int]:
    """What a call adds to its minutes when it is over, in thousandths; of measures that have a limit."""
    found, minutes = [0, 0, 0], _minutes(limits)
    for measure, tokens in enumerate(_measures(taken.counted, taken.generated)):
        if measure in minutes:
            found[measure] = (tokens - reserved.minutes[measure]) * _MILLI
    return found[TOKENS], found[PROMPT], found[GENERATED]


def _minutes(limits: Sequence[TokenLimit]) -> set[int]:
    return {limit.measure for limit in limits if limit.window is Window.MINUTE}


def left(view: AccountView, limit: TokenLimit) -> int:
    """What a call that begins now may take."""
    holds = 0 if limit.window is Window.MINUTE else _measures(*view.held)[limit.measure]
    return max(0, limit.most - used(view.numbers, limit) - holds)


def _measures(prompt: int, generated: int) -> tuple[int, int, int]:
    return prompt + generated, prompt, generated


def _needed(need: int, most: int) -> int:
    return need if need <= most else (most + 1) // 2
