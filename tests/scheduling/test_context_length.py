"""Engines of one model with contexts of different lengths: who gets which call, and what fits nowhere."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, parse_object
from pdgate.protocols.errors import ContextTooLong
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.decision_trace import DecisionTrace
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy import load
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import D0, D1, P0, P1

PLAIN = replace(P0, id="plain", role=Role.PLAIN)


class Site:
    def __init__(self, lengths: Mapping[Instance, int | None], *, strict: bool = True) -> None:
        self.endpoints = Endpoints(lengths)
        for one, length in lengths.items():
            self.endpoints.mark_up(
                one.id, ["m"], {} if length is None else {"m": length}, strict=strict
            )
        some = load("round_robin", PolicyContext())
        self.scheduler = Scheduler(self.endpoints, some, some, some)

    def chosen(self, role: Role, call: Call, times: int = 6) -> set[str]:
        found = set()
        for _ in range(times):
            with self.scheduler.reserve(role, call) as one:
                found.add(one.instance.id)
        return found


def call_of(body: bytes, path: str = CHAT, model: str | None = "m") -> Call:
    return Call("c", "c-1", path, parse_object(body), model=model, prompt_tokens=len(body) // 4)


def asking(tokens: int, words: int = 10) -> Call:
    text = b"a" * words
    return call_of(b'{"messages": [{"content": "%s"}], "max_tokens": %d}' % (text, tokens))


@pytest.mark.parametrize("model", ["m", None])
def test_a_call_goes_where_its_prompt_and_answer_fit(model: str | None) -> None:
    site = Site({P0: 1000, P1: 8000, D0: 1000, D1: 8000})
    short, answer, prompt = (
        replace_model(one, model) for one in (asking(100), asking(2000), asking(1, 6000))
    )

    assert site.chosen(Role.PREFILL, short) == {"p0", "p1"}
    assert site.chosen(Role.DECODE, short) == {"d0", "d1"}
    # Prefill computes one token only, however many are asked for.
    assert site.chosen(Role.PREFILL, answer) == {"p0", "p1"}
    assert site.chosen(Role.DECODE, answer) == {"d1"}
    assert site.chosen(Role.PREFILL, prompt) == {"p1"}
    assert site.chosen(Role.DECODE, prompt) == {"d1"}


def replace_model(call: Call, model: str | None) -> Call:
    return Call(call.id, "c-1", call.path, call.body, model=model, prompt_tokens=call.prompt_tokens)


def test_what_may_fit_goes_to_the_longest_and_the_engine_says() -> None:
    """How many tokens a text has only it knows; and of prompt and answer together it cuts the answer."""
    site = Site({P0: 1000, P1: 2000, D0: 2000, D1: 1000})

    assert site.chosen(Role.PREFILL, asking(1900, 6000)) == {"p1"}
    assert site.chosen(Role.DECODE, asking(1900, 6000)) == {"d0"}


@pytest.mark.parametrize(
    ("call", "words", "param"),
    [
        (asking(9000), "9000 are asked for", "max_tokens"),
        (
            call_of(b'{"messages": [], "max_completion_tokens": 9000}'),
            "9000",
            "max_completion_tokens",
        ),
        (
            call_of(b'{"prompt": [%s]}' % b",".join([b"7"] * 9000), COMPLETIONS),
            "has 9000 tokens",
            "prompt",
        ),
    ],
)
def test_what_fits_nowhere_is_refused_before_any_engine_works(
    call: Call, words: str, param: str
) -> None:
    """Also by prefill, which itself would have room: decode, which is asked after it, has none."""
    site = Site({P0: 10_000, D0: 1000, D1: 8000})

    with pytest.raises(ContextTooLong, match=words) as refused:
        site.scheduler.reserve(Role.PREFILL, call)

    assert "maximum context length is 8000 tokens" in str(refused.value)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.code == "context_length_exceeded"
    assert not any(one.calls for one in site.endpoints)


def test_token_ids_are_counted() -> None:
    """And not taken for text, of which so many bytes may be more tokens."""
    site = Site({P0: 1000, P1: 8000, D0: 1000, D1: 8000})
    long_ids = call_of(b'{"prompt": [%s]}' % b",".join([b"123456"] * 900), COMPLETIONS)

    assert long_ids.prompt_tokens * 2 > 1000
    assert site.chosen(Role.PREFILL, long_ids) == {"p0", "p1"}
    assert site.chosen(Role.PREFILL, ids(1001)) == {"p1"}


def test_a_prefill_engine_need_not_hold_the_answer() -> None:
    """However little it takes: it is asked for one token, and decode has room for the others."""
    site = Site({P0: 1000, D0: 8000})

    assert site.chosen(Role.PREFILL, asking(4000)) == {"p0"}
    assert site.chosen(Role.DECODE, asking(4000)) == {"d0"}


def ids(count: int, more: bytes = b"") -> Call:
    return call_of(b'{"prompt": [%s]%s}' % (b",".join([b"7"] * count), more), COMPLETIONS)


SERVED = {
    "a prompt that is to be cut": ids(9000, b', "truncate_prompt_tokens": 100'),
    "no limit of completions": call_of(
        b'{"prompt": "a", "max_completion_tokens": 9000}', COMPLETIONS
    ),
    "no limit of chats": call_of(b'{"messages": [], "max_output_tokens": 9000}'),
    "the newer limit counts": call_of(
        b'{"messages": [], "max_completion_tokens": 5, "max_tokens": 9000}'
    ),
    "a response, which some cut": call_of(b'{"input": "a", "max_output_tokens": 9000}', RESPONSES),
    "a message, which some cut": call_of(b'{"messages": [], "max_tokens": 9000}', MESSAGES),
    "what fits exactly": asking(8000),
    "ids that fit exactly": ids(8000),
    "of both together the answer is cut": ids(7999, b', "max_tokens": 8000'),
}


@pytest.mark.parametrize("call", SERVED.values(), ids=SERVED.keys())
def test_what_an_engine_might_serve_is_not_refused(call: Call) -> None:
    site = Site({P0: 1000, D0: 1000, D1: 8000})

    assert site.chosen(Role.PREFILL, call) == {"p0"}
    assert site.chosen(Role.DECODE, call)


@pytest.mark.parametrize("call", [asking(9000), ids(9000)], ids=["answer", "prompt"])
def test_engines_that_may_cut_what_is_too_long_are_asked(call: Call) -> None:
    """Of several that refuse it one is enough."""
    site = Site({P0: 8000, D0: 1000, D1: 8000})
    site.endpoints.mark_up("d0", ["m"], {"m": 1000}, strict=False)

    assert site.chosen(Role.PREFILL, call) == {"p0"}
    assert site.chosen(Role.DECODE, call) == {"d1"}
    assert Site({PLAIN: 1000}, strict=False).chosen(Role.PLAIN, call) == {"plain"}


def test_the_longest_engine_counts_while_it_is_away() -> None:
    """It will be back: the call is no fault of the client's."""
    site = Site({P0: 8000, D0: 1000, D1: 10_000})
    site.endpoints.mark_down("d1")

    assert site.chosen(Role.PREFILL, asking(9000)) == {"p0"}
    with pytest.raises(ContextTooLong):
        site.scheduler.reserve(Role.PREFILL, asking(11_000))


def test_one_that_was_configured_and_has_not_answered_yet_may_have_any_length() -> None:
    site = Site({D0: 1000, P0: 8000})
    site.endpoints.put(replace(D1, model="m"))

    assert site.chosen(Role.PREFILL, asking(9000)) == {"p0"}


def test_what_is_to_go_to_one_engine_is_its_to_refuse() -> None:
    site = Site({PLAIN: 1000})

    assert site.chosen(Role.PLAIN, msgspec.structs.replace(asking(9000), at="plain")) == {"plain"}


@pytest.mark.parametrize("limit", [b"null", b'"many"', b"-1", b"1e9", b"9" * 5000, b"[]"])
def test_what_is_no_number_is_for_the_engine_to_refuse(limit: bytes) -> None:
    site = Site({PLAIN: 100})

    assert site.chosen(Role.PLAIN, call_of(b'{"messages": [], "max_tokens": %s}' % limit[:40])) == {
        "plain"
    }


def test_an_engine_that_says_no_length_may_have_any() -> None:
    site = Site({P0: None, P1: 1000, D0: None, D1: 1000})

    assert site.chosen(Role.PREFILL, asking(9000, 6000)) == {"p0"}
    assert site.chosen(Role.DECODE, asking(9000, 6000)) == {"d0"}


def test_a_list_of_prompts_is_not_one_long_prompt() -> None:
    """Each has to fit, which engines say."""
    site = Site({PLAIN: 1000})
    several = b",".join([b"[1,2,3]"] * 900)

    assert site.chosen(Role.PLAIN, call_of(b'{"prompt": [%s]}' % several, COMPLETIONS)) == {"plain"}


def test_why_an_engine_was_left_out_is_said() -> None:
    site, told = Site({P0: 1000, P1: 8000, D0: 8000}), list[DecisionTrace]()
    site.scheduler.told = lambda _, trace: told.append(trace)

    site.scheduler.reserve(Role.PREFILL, asking(1, 6000)).end()

    (left,) = told[0].left_out
    assert left.instance == "p0"
    assert left.why.startswith("its context has 1000 tokens, and the call may take 30")


def test_a_length_that_changes_counts_from_the_next_call_on() -> None:
    """The engine was started anew with another."""
    site = Site({P0: 1000, P1: 8000, D0: 8000})
    assert site.chosen(Role.PREFILL, asking(1, 6000)) == {"p1"}

    site.endpoints.mark_up("p0", ["m"], {"m": 8000})

    assert site.chosen(Role.PREFILL, asking(1, 6000)) == {"p0", "p1"}
