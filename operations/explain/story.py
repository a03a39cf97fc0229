"""Story of a call, made of its record. Pure.

    call mine, model tiny: ok (200) after 52.1 ms
      vllm-nixl, batch: disaggregated; decode took over the KV of prefill
    attempt 1: split, because always asked for
      prefill  prefill-0  ok       0.2 ..   20.4 ms  |=======         |
               chosen by least_loaded: 0 calls with 0 tokens in flight (score 0)
               before prefill-1: 2 calls with 410 tokens in flight (score -922)
               left out: prefill-2, an operator has drained it
      decode   decode-0   ok      20.9 ..   52.0 ms  |       =========|

What a gateway of another version does not tell is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pdgate.scheduling.decision_trace import written

BAR: Final = 32
"""Characters of a timeline."""

SAME_MS: Final = 0.1
"""What a line would show as the same time."""

Json = Mapping[str, Any]

_PATHS: Final = {
    "disaggregated": "split over two engines",
    "local": "a decode engine did it all",
    "decode_only": "a decode engine did it all, as there was no prefill engine for it",
    "prefill_only": "a prefill engine did it all",
    "plain": "a plain engine did it all",
}
_TAKEN: Final = {
    "split": "split over prefill and decode",
    "local": "not split",
    "prefill_only": "left to prefill alone",
}


def story(record: Json) -> list[str]:
    """Lines without markup."""
    choices = record.get("choices") or ()
    lines = [*_head(record)]
    attempts = record.get("attempts") or ()
    ends = [leg.get("ended_ms") or 0.0 for attempt in attempts for leg in attempt["legs"]]
    whole = max([*ends, record.get("stages_ms", {}).get("total") or 0.0])
    for number, attempt in enumerate(attempts, 1):
        lines.extend(_attempt(number, attempt, choices, whole))
    stages = _stages(record.get("stages_ms") or {})
    if stages:
        told = ", ".join(f"{name} {time:.1f}" for name, time in stages.items())
        lines.append(f"stages of the last attempt, in ms: {told}")
    return lines


def _stages(stages: Mapping[str, float]) -> Mapping[str, float]:
    """Without `decode_first_byte` where it is `kv_wait` again: D was asked as soon as P had answered."""
    waited, first = stages.get("kv_wait"), stages.get("decode_first_byte")
    if waited is None or first is None or abs(waited - first) >= SAME_MS:
        return stages
    return {name: time for name, time in stages.items() if name != "decode_first_byte"}


def _head(record: Json) -> Iterator[str]:
    total = record.get("stages_ms", {}).get("total")
    after = "" if total is None else f" after {total:.1f} ms"
    status = record.get("status")
    outcome = f"{record.get('outcome')}" + (f" ({status})" if status else "")
    shared = f" (a share of {record['shared']})" if record.get("shared") else ""
    model = f"{record.get('model') or 'none named'}{shared}"
    yield f"call {record.get('id')}, model {model}: {outcome}{after}"
    path = record.get("path", "")
    if path:
        what = [_PATHS.get(str(path), str(path))]
        if record.get("why_local"):
            what.append(f"because: {record['why_local']}")
        if path == "disaggregated":
            arrived = record.get("kv") == "handed_over"
            what.append(
                "decode answered to the KV that prefill left for it"
                if arrived
                else "decode did not answer to the KV of prefill"
            )
        yield f"  {record.get('protocol')}, {record.get('mode') or 'one engine'}: {'; '.join(what)}"
    if record.get("made_way"):
        yield f"  {record['made_way']} running calls of less urgency gave way to it, as it would have been late"
    for since, until in record.get("gave_way_ms") or ():
        yield f"  it gave way to a more urgent call at {since:.1f} ms, and went on at {until:.1f} ms"
    if record.get("resumed"):
        yield f"  another engine went on with the answer, {record['resumed']} times"
    if record.get("not_resumed"):
        yield f"  a broken stream could not go on at another engine: {record['not_resumed']}"
    if session := record.get("session"):
        yield f"  {_session(session)}"
    tokens = record.get("tokens")
    if tokens:
        told = ", ".join(f"{name} {count}" for name, count in tokens.items() if count is not None)
        yield f"  tokens: {told}"


def _session(session: Json) -> str:
    told = ", ".join(
        f"{count} messages ({session['bytes'][side]} bytes) of the {side}"
        for side, count in session["messages"].items()
    )
    ended = session["ended_by"]
    how = f", then {ended} ({session['close_code'] or 'no code'})" if ended else ""
    return f"a session: open for {session['seconds']:.1f} s{how}; {told}"


def _attempt(number: int, attempt: Json, choices: Sequence[Json], whole: float) -> Iterator[str]:
    decision = attempt.get("decision")
    why = "no engines to split it over" if decision is None else _decision(decision)
    yield f"attempt {number}: {why}"
    legs = attempt["legs"]
    pending = [choice for choice in choices if choice.get("attempt") == number]
    width = max([len(leg["instance"]) for leg in legs], default=0)
    for leg in legs:
        yield _leg(leg, width, whole)
        for choice in [one for one in pending if one.get("chosen") == leg["instance"]]:
            pending.remove(choice)
            yield from _choice(choice)
    for choice in pending:
        chosen = choice.get("chosen")
        yield f"  {choice['role']:<8} " + (
            f"{chosen} was chosen, and sent nothing" if chosen else "there was nobody to choose"
        )
        yield from _choice(choice)


def _decision(decision: Json) -> str:
    taken = _TAKEN.get(decision["taken"], decision["taken"])
    expected = decision.get("expected_ms") or {}
    told = ", ".join(f"{way} {time:.1f} ms" for way, time in expected.items())
    return f"{taken}, because: {decision['reason']}" + (f" (expected: {told})" if told else "")


def _leg(leg: Json, width: int, whole: float) -> str:
    started, ended = leg["started_ms"], leg.get("ended_ms")
    until = "now" if ended is None else f"{ended:.1f} ms"
    return (
        f"  {leg['role']:<8} {leg['instance']:<{width}}  {leg['outcome']:<14} "
        f"{started:8.1f} .. {until:>11}  {_bar(started, ended, whole)}"
    )


def _bar(started: float, ended: float | None, whole: float) -> str:
    """Where in the call's time it was."""
    if whole <= 0:
        return f"|{' ' * BAR}|"
    first = min(BAR - 1, int(BAR * started / whole))
    last = BAR if ended is None else max(first + 1, round(BAR * ended / whole))
    return f"|{' ' * first}{'=' * (last - first)}{' ' * (BAR - last)}|"


def _choice(choice: Json) -> Iterator[str]:
    indent = " " * 11
    considered = choice.get("considered") or ()
    rule = choice.get("rule") or ()
    compared = [str(step["by"]) for step in rule if step["by"] != "score"]
    for one in considered:
        if one["instance"] == choice.get("chosen"):
            by = f"chosen by {choice['policy']}: " if choice.get("policy") else ""
            yield f"{indent}{by}{_reason(one, compared)}"
            if choice.get("decided_by"):
                yield f"{indent}decided by: {choice['decided_by']}"
            if len(rule) > 1:
                steps = ", then ".join(str(step.get("words") or step.get("by")) for step in rule)
                yield f"{indent}by the rule: {steps}"
    others = [one for one in considered if one["instance"] != choice.get("chosen")]
    for one in sorted(others, key=lambda one: -(one.get("score") or 0.0)):
        yield f"{indent}rather than {one['instance']}: {_reason(one, compared)}"
    for one in choice.get("left_out") or ():
        yield f"{indent}left out: {one['instance']}, as {one['why']}"
    if choice.get("more"):
        yield f"{indent}and {choice['more']} engines more"


def _reason(one: Json, compared: Sequence[str]) -> str:
    """What the policy says of it, and all that the steps of its rule compare."""
    score, values = one.get("score"), one.get("values") or {}
    found = [] if score is None else [f"score {written(score)}"]
    found.extend(f"{by} {written(values[by])}" for by in dict.fromkeys(compared) if by in values)
    why = one.get("why") or "it gives no reason"
    return f"{why} ({', '.join(found)})" if found else str(why)
