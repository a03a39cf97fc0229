"""Continuation: the call that asks another engine for the rest of an answer.

    chat         {"messages": [...], "max_tokens": 100}
    the rest of  {"prompt": [ids of the prompt, ids of what was said], "max_tokens": 93}

Before the first token nothing is known of what parsers of the engine would make of the
text, and nothing need be: the same question is asked again.
"""

import msgspec

from pdgate.forwarders.resuming.eligible import CARRIED, WANTED
from pdgate.forwarders.resuming.journal import StreamJournal
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, encode, parse_object
from pdgate.protocols.fields import count_of, is_true

DEFAULT_MAX_TOKENS = 16
"""Of completions that name no limit; chats may go on as long as the engine lets them."""


def asking_for_ids(call: Call) -> Call:
    return msgspec.structs.replace(call, body={**call.body, WANTED: True})


def limit(call: Call) -> int | None:
    """Tokens that the whole answer may have; None for as many as the engine likes."""
    if call.path == CHAT:
        # The newer name wins.
        found = call.value("max_completion_tokens")
        found = call.value("max_tokens") if found is None else found
    else:
        found = call.value("max_tokens", None if "max_tokens" in call.body else DEFAULT_MAX_TOKENS)
    return count_of(found)


def continuation(call: Call, journal: StreamJournal) -> Call:
    """`call` is the whole one, as it was asked for first."""
    said = journal.whole
    if not said:
        return call
    body = {name: found for name, found in call.body.items() if name in CARRIED}
    body["prompt"] = [*journal.prompt, *journal.tokens[:said]]
    whole = limit(call)
    body["max_tokens"] = None if whole is None else whole - said
    if (at_least := (count_of(call.value("min_tokens")) or 0) - said) > 0:
        body["min_tokens"] = at_least
    if (alternatives := alternatives_of(call)) is not None:
        body["logprobs"] = alternatives
    body[WANTED] = True
    return msgspec.structs.replace(
        call,
        path=COMPLETIONS,
        # Raw values, as those of any call.
        body=parse_object(encode(body)),
        prompt_tokens=len(journal.prompt) + said,
    )


def alternatives_of(call: Call) -> int | None:
    """How many log-probabilities each token comes with, as completions ask for them."""
    if call.path != CHAT:
        return count_of(call.value("logprobs"))
    return count_of(call.value("top_logprobs", 0)) if is_true(call.value("logprobs")) else None
