"""Account of an engine's load: what we count ourselves, and what only the engine can know.

    what it says ----.
                      >-- beyond = said - ours, at that moment --.
    our account then -'                                           >-- ours now + beyond = its load
    our account now ---------------------------------------------'

The engine's word is seconds old, our account is not; so the word only adds what is beyond our
account (other gateways' calls, answers' KV), and a burst that we sent since then counts at once.

Our account is also the floor: an engine that says that it is idle, while it has calls of ours, is
no idler for that. So an engine that lies gets no more than others, and one that exaggerates only
gets less. KV is the exception, as prompts of several calls share pages: what they take may be as
little as MOST_SHARED says. An engine that claims less than that is not believed, and our account is
all that counts, until it says something better. How much it can hold is believed up to MOST_TIMES
what the middle one of its role says, as nothing that we know ourselves could be held against it.

A status that is too old is taken away by its reader (gateway/engine_metrics/reader.py), so none
of this looks at a clock: it costs an addition for each endpoint of each choice.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median_low
from typing import Final, Self

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.status import NOTHING, Beyond, Status

MOST_SHARED: Final = 0.5
"""Of our prompt tokens at an engine, those whose pages hold another of our prompts as well."""

MOST_TIMES: Final = 4

LEARN_SECONDS: Final = 1.0
"""Between looks at engines whose steps are not known yet. A fleet that starts under load takes so many calls in five
seconds that all answers get too slow: of 3,000 chats that come within 15 s 21 % were in time, and are 57 % with this."""

LEARN_AT_ONCE: Final = 8
"""Engines; what they show holds for the others of their kind."""


def calls_there(endpoint: Endpoint) -> int:
    """Calls in flight at the engine, from any sender."""
    return endpoint.calls + endpoint.beyond.calls


def unread_tokens_there(endpoint: Endpoint) -> int:
    """Prompt tokens that it has still to compute, from any sender."""
    return endpoint.unread_tokens + endpoint.beyond.unread_tokens


def context_tokens_of(endpoint: Endpoint, batch: int) -> int:
    """Tokens that so many of the answers there attend to: those of prompts, and of KV that is others' or of answers.

    Calls that are still with prefill are in the account of decode, too; so of more calls than the batch it is the batch's
    share. Pages that several prompts share are attended to for each.
    """
    tokens = endpoint.tokens + max(0, endpoint.beyond.kv_tokens)
    calls = calls_there(endpoint)
    return tokens * batch // calls if calls > batch else tokens


def kv_free_after(call: Call, endpoint: Endpoint) -> float | None:
    """Share of its KV that is left once it has taken this call and all that is on its way to it.

    It is below 0 where they do not fit. None for an engine that does not say how much it can hold.
    """
    beyond = endpoint.beyond
    if not beyond.kv_capacity:
        return None
    used = max(0, endpoint.tokens + beyond.kv_tokens) + call.prompt_tokens
    return 1 - used / beyond.kv_capacity


@dataclass(frozen=True, slots=True)
class Account:
    """Ours of an engine, at one moment.

    Attributes:
        calls, tokens, unread_tokens: As of an Endpoint.
        unread_prompts: Tokens of the prompts that may be unread, cached ones included: an engine says how much it
            has queued before it looks what of that is cached.
    """

    calls: int = 0
    tokens: int = 0
    unread_tokens: int = 0
    unread_prompts: int = 0

    @classmethod
    def of(cls, endpoint: Endpoint) -> Self:
        calls, tokens, unread = endpoint.calls, endpoint.tokens, endpoint.unread_tokens
        # What is answered already has been read; prompts are taken to be as long as each other.
        prompts = tokens * max(0, calls - endpoint.answering) // calls if calls else 0
        return cls(calls, tokens, unread, max(unread, prompts))


def told(
    endpoint: Endpoint,
    status: Status | None,
    asked: Account,
    most_kv_tokens: int | None = None,
) -> None:
    """The engine has said this now; None for one that says nothing.

    Args:
        asked: Our account when it was asked. It answered at some moment since.
        most_kv_tokens: It is not believed that it can hold more; None for no matter what.
    """
    endpoint.status = status
    endpoint.beyond = NOTHING
    if status is not None:
        if most_kv_tokens is not None and (status.kv_tokens or 0) > most_kv_tokens:
            status = replace(status, kv_tokens=most_kv_tokens)
        endpoint.beyond = beyond(status, asked, Account.of(endpoint))
        if status.step_seconds is not None:
            batch = max(1, status.running or 0, endpoint.answering)
            context_tokens = context_tokens_of(endpoint, batch)
            endpoint.latency.says(status.step_seconds, batch, context_tokens)


def unlearnt(endpoints: Iterable[Endpoint]) -> list[Endpoint]:
    """Those that are to be asked soon: they answer, and how long their steps take is not known."""
    answering = (one for one in endpoints if one.answering and not one.latency.step_time.known)
    return list(islice(answering, LEARN_AT_ONCE))


def most_kv_tokens(endpoints: Iterable[Endpoint]) -> Mapping[Role, int]:
    """What is believed of an engine of each role, by what all of them have said."""
    said: dict[Role, list[int]] = {}
    for endpoint in endpoints:
        if endpoint.status is not None and endpoint.status.kv_tokens:
            said.setdefault(endpoint.instance.role, []).append(endpoint.status.kv_tokens)
    return {role: MOST_TIMES * median_low(tokens) for role, tokens in said.items()}


def beyond(status: Status, asked: Account, now: Account) -> Beyond:
    """What of the engine's word is surely not of our account, at either end of the question."""
    calls = (status.running or 0) + (status.waiting or 0) + (status.queue_share or 0)
    return Beyond(
        max(0, calls - max(asked.calls, now.calls)),
        max(0, (status.queued_tokens or 0) - max(asked.unread_prompts, now.unread_prompts)),
        _kv_tokens(status, asked, now),
        status.kv_tokens,
    )


def _kv_tokens(status: Status, asked: Account, now: Account) -> int:
    if status.kv_tokens is None or status.kv_free is None:
        return 0
    held = round((1 - status.kv_free) * status.kv_tokens)
    # Those that are not read yet hold no pages, and will.
    read = min(asked.tokens - asked.unread_tokens, now.tokens - now.unread_tokens)
    more = held - max(asked.tokens - asked.unread_tokens, now.tokens - now.unread_tokens)
    return more if held >= (1 - MOST_SHARED) * read else 0
