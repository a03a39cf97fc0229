"""Engines of one model with contexts of different lengths: who gets which call, and what fits nowhere."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import pytest

from pdgate.protocols.apis import MESSAGES, RESPONSES
from pdgate.protocols.call import CHAT, COMPLETIONS, Call, parse_object
from pdgate.protocols.errors import ContextTooLong
from pdgate.protocols.instance import Instance, Role
from pdgate.scheduling.decision_trace import DecisionTrace
from pdgate.scheduling.disaggregation import (
    Always,
    Decision,
    Never,
    SplitRule,
    Taken,
    UncachedTokensAbove,
)
from pdgate.scheduling.disaggregation.decision import LONG_PROMPT, NO_ROOM
from pdgate.scheduling.disaggregation.rules import NOTHING_CACHED
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy import load
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.scheduler import Scheduler
from tests.support.scripted import D0, D1, P0, P1

PLAIN = replace(P0, id="plain", role=Role.PLAIN)
P2, D2 = (replace(one, id=f"{one.id[0]}2", protocol="vllm-mooncake") for one in (P0, D0))
B0, B1, B2 = (replace(P0, id=f"b{n}", role=Role.BOTH) for n in range(3))


class Site:
    def __init__(
        self,
        lengths: Mapping[Instance, int | None],
        *,
        strict: bool = True,
        rule: SplitRule | None = None,
    ) -> None:
        self.endpoints = Endpoints(lengths)
        for one, length in lengths.items():
            self.endpoints.mark_up(
                one.id, ["m"], {} if length is None else {"m": length}, strict=strict
            )
        some = load("round_robin", PolicyContext())
        self.scheduler = Scheduler(self.endpoints, some, some, some, rule)

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


def test_prefill_is_chosen_where_one_with_room_can_answer_after_it() -> None:
    """Whoever answers is a peer of the one that reads, and not all peers are as long."""
    site = Site({P0: 8000, D0: 1000, P2: 8000, D2: 8000})

    assert site.chosen(Role.PREFILL, asking(100)) == {"p0", "p2"}
    assert site.chosen(Role.PREFILL, asking(2000)) == {"p2"}
    # Where none has so much: the pair of the longest.
    assert site.chosen(Role.PREFILL, asking(7000, 6000)) == {"p2"}


def test_the_room_of_one_that_has_failed_the_call_is_none() -> None:
    site = Site({P0: 8000, D0: 1000, P2: 8000, D2: 8000, replace(D2, id="d3"): 500})

    one = site.scheduler.reserve(Role.PREFILL, asking(2000), avoid=["d2"])

    assert one.instance.id == "p0"


def test_who_is_named_for_a_call_has_room_for_it() -> None:
    """By its cache, or as it was chosen to read the prompt: which is a wish, where another one can hold the answer."""
    site = Site({P0: 8000, D0: 1000, D1: 8000})

    for tokens, expected in ((100, "d0"), (2000, "d1")):
        call = asking(tokens)
        with site.scheduler.reserve(Role.DECODE, call, reads=True, among=["d0"]) as one:
            assert one.instance.id == expected


class Given(SplitRule):
    """Keeps what it was given."""

    def __init__(self) -> None:
        self.decodes: list[list[str]] = []

    def decide(
        self,
        call: Call,
        prefill: Endpoint,
        decodes: Sequence[Endpoint],
        cached: Mapping[str, int] = NOTHING_CACHED,
        may_keep: bool = True,
    ) -> Decision:
        self.decodes.append([one.instance.id for one in decodes])
        return Decision(Taken.SPLIT, LONG_PROMPT)


@pytest.mark.parametrize(("tokens", "expected"), [(100, ["d0", "d1"]), (2000, ["d1"])])
def test_a_rule_looks_at_engines_that_have_room(tokens: int, expected: list[str]) -> None:
    rule = Given()
    site = Site({P0: 8000, D0: 1000, D1: 8000}, rule=rule)
    p0 = site.endpoints.get("p0")
    assert p0 is not None

    with site.scheduler.reserve(Role.PREFILL, asking(tokens)) as prefill:
        site.scheduler.decide(asking(tokens), prefill)
    assert not site.scheduler.stays(asking(tokens), p0)

    assert rule.decodes == [expected, expected]


@pytest.mark.parametrize(
    ("rule", "readers"),
    [
        # The others answer, and these are not long enough for that.
        (Always(), {"b0", "b1", "b2"}),
        # It may keep the call.
        (Never(), {"b1", "b2"}),
        (UncachedTokensAbove(), {"b1", "b2"}),
    ],
)
def test_an_engine_of_both_roles_that_may_keep_a_call_has_room_for_all_of_it(
    rule: SplitRule, readers: set[str]
) -> None:
    site = Site({B0: 1000, B1: 8000, B2: 8000}, rule=rule)

    assert site.chosen(Role.PREFILL, asking(100)) == {"b0", "b1", "b2"}
    assert site.chosen(Role.PREFILL, asking(2000)) == readers


@pytest.mark.parametrize("rule", [Always(), Never(), UncachedTokensAbove(0)])
def test_one_of_both_roles_that_is_to_read_only_needs_no_room_for_the_answer(
    rule: SplitRule,
) -> None:
    """With adaptive roles: it keeps no call."""
    site = Site({P0: 8000, B0: 8000, D0: 8000, D1: 1000}, rule=rule)
    site.endpoints.assign("b0", frozenset({Role.PREFILL}))

    assert site.chosen(Role.PREFILL, asking(2000)) == {"p0", "b0"}


@pytest.mark.parametrize("rule", [Always(), Never(), UncachedTokensAbove(0)])
def test_one_of_both_roles_that_has_room_reads_also_where_it_answers_for_no_other(
    rule: SplitRule,
) -> None:
    """It is the only one of its protocol that reads, and so in a pair as that alone."""
    site = Site({P2: 8000, D2: 8000, B0: 8000, D0: 8000, D1: 1000}, rule=rule)

    assert site.chosen(Role.PREFILL, asking(2000)) == {"p2", "b0"}


@pytest.mark.parametrize("rule", [Always(), UncachedTokensAbove(0)])
def test_what_can_be_split_in_one_direction_only_is_split_so(rule: SplitRule) -> None:
    site = Site({B0: 1000, B1: 8000}, rule=rule)

    assert site.chosen(Role.PREFILL, asking(2000)) == {"b0"}


@pytest.mark.parametrize("rule", [Always(), UncachedTokensAbove(0)])
def test_the_only_engine_with_room_keeps_the_call(rule: SplitRule) -> None:
    """It is the only one that can read the prompt, and there is no other one to answer."""
    site = Site({B0: 1000, B1: 8000}, rule=rule)
    call = asking(2000, 6000)

    with site.scheduler.reserve(Role.PREFILL, call) as reads:
        assert reads.instance.id == "b1"
        assert site.scheduler.decide(asking(100, 200), reads).taken is Taken.SPLIT
        decision = site.scheduler.decide(call, reads)
        assert (decision.taken, decision.reason) == (Taken.LOCAL, NO_ROOM)
        assert decision.may_stay_at("b1")
        # To answer is not its side now.
        site.endpoints.assign("b1", frozenset({Role.PREFILL}))
        assert site.scheduler.decide(call, reads).taken is Taken.SPLIT


def test_what_needs_prefill_for_room_does_not_stay() -> None:
    site = Site({B0: 1000, B1: 8000}, rule=UncachedTokensAbove(0))
    b0, b1 = (site.endpoints.get(one) for one in ("b0", "b1"))
    assert b0 is not None
    assert b1 is not None

    assert not site.scheduler.stays(asking(2000), b0)
    assert site.scheduler.stays(asking(2000), b1)


def test_why_one_that_could_read_was_left_out_is_said() -> None:
    told = list[DecisionTrace]()
    site = Site({P0: 8000, D0: 1000, P2: 8000, D2: 8000})
    site.scheduler.told = lambda _, trace: told.append(trace)
    site.scheduler.reserve(Role.PREFILL, asking(2000)).end()
    site = Site({B0: 1000, B1: 8000, B2: 8000}, rule=Never())
    site.scheduler.told = lambda _, trace: told.append(trace)
    site.scheduler.reserve(Role.PREFILL, asking(2000)).end()

    ((p0,), (b0,)) = (trace.left_out for trace in told)

    assert (p0.instance, b0.instance) == ("p0", "b0")
    assert p0.why == "no engine that could answer after it has room for the call"
    assert b0.why.startswith("its context has 1000 tokens, and the call may take 20")


def test_why_one_was_left_out_is_said_of_those_that_have_not_failed_the_call() -> None:
    """Its partner with room has; the other one has none."""
    told = list[DecisionTrace]()
    site = Site({P0: 8000, D0: 1000, P2: 8000, D2: 8000, replace(D2, id="d3"): 500})
    site.scheduler.told = lambda _, trace: told.append(trace)

    site.scheduler.reserve(Role.PREFILL, asking(2000), avoid=["d2"]).end()

    (left,) = told[0].left_out
    assert left.instance == "p2"
    assert left.why == "no engine that could answer after it has room for the call"


class Counted(list[int]):
    """A prompt that notes how often it is counted."""

    def __init__(self, tokens: int) -> None:
        super().__init__([7] * tokens)
        self.times = 0

    def __len__(self) -> int:
        self.times += 1
        return super().__len__()


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_why_many_were_left_out_takes_no_look_at_the_prompt_for_each(role: Role) -> None:
    """A prompt may be long, and the loop waits."""

    def times(engines: int, *, short: int, tells: bool = True) -> int:
        of_each = {replace(P0, id=f"p{n}"): short for n in range(engines)}
        of_each |= {replace(D0, id=f"d{n}"): short for n in range(engines)}
        site = Site({**of_each, P1: 8000, D1: 8000})
        if tells:
            site.scheduler.told = lambda _, __: None
        prompt = Counted(5000)
        call = Call("c", "c-1", COMPLETIONS, {"prompt": prompt}, model="m", prompt_tokens=2500)
        site.scheduler.reserve(role, call).end()
        return prompt.times

    assert times(40, short=1000) == times(2, short=1000)
    # All are alike, so room is no reason.
    assert times(40, short=8000) == times(40, short=8000, tells=False)
