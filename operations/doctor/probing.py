"""Calls of one token, and connections to where KV is fetched.

A vLLM engine dies of a request that has the wrong kv_transfer_params, or that is meant for the other
side (measured: NIXL without blocks, Mooncake with crossed roles). So there is

    no hand-over with anything but vllm-nixl, whose engines do not distinguish roles, and only where
    an engine's metrics show that it has that connector: the wrong protocol may have been named
    nothing to decode but what a prefill engine has just answered, word for word
    no call at all where engines cannot answer alone (SGLang, Neuron, Llumnix)

What is kept for a crossing that does not come about is free after the engine's lease.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any, Final

import httpx2

from pdgate.operations.doctor import collect, hashes, parsing
from pdgate.operations.doctor.seen import Crossing, Dial, Examined, Probes, SeenEngine, SeenKept
from pdgate.protocols.dialects import nixl
from pdgate.protocols.dialects.sglang import DEFAULT_PORT as SGLANG_PORT
from pdgate.protocols.instance import Role

NIXL, MOONCAKE, SGLANG, PLAIN = "vllm-nixl", "vllm-mooncake", "sglang", "plain"
ANSWER_ALONE: Final = frozenset({NIXL, MOONCAKE, PLAIN})
"""Protocols whose engines answer a call without any field of ours."""

NUMBERS: Final = 160
"""In a probe's prompt: at least as many tokens, so more than a block of most engines."""

COUNTED_SECONDS: Final = 2.0
"""In which an engine's counters follow its answer."""
DIAL_SECONDS: Final = 3.0
MAX_SHOWN: Final = 200
"""Characters of an engine's error."""

Step = Callable[[], None]


def prompt() -> str:
    """A prompt that no engine has in its cache."""
    return f"{uuid.uuid4().hex} " + " ".join(map(str, range(NUMBERS)))


def steps(fleet: Sequence[SeenEngine]) -> int:
    """How many there are, for a progress bar."""
    examined = Examined(fleet, Probes())
    able = [seen for seen in examined.well if seen.instance.protocol in ANSWER_ALONE]
    return len(able) + len(_crossings(examined))


async def probe(
    client: httpx2.AsyncClient,
    fleet: Sequence[SeenEngine],
    step: Step,
    kv_secrets: Sequence[str] = (),
) -> Probes:
    """Probe the engines that are well; whatever goes wrong is part of what is found."""
    examined = Examined([seen for seen in fleet if seen.well], Probes())
    probes = examined.probes
    await _alone(client, examined, step, kv_secrets)
    for prefill, decode in _crossings(examined):
        await _cross(client, examined, prefill, decode)
        step()
    for prefill in examined.of(Role.PREFILL):
        if _bears_hand_over(prefill) and prefill.id not in probes.kept:
            probes.kept[prefill.id] = await _keep(client, prefill, prompt())
    for prefill in examined.of(Role.PREFILL):
        for host, port in _addresses(examined, prefill):
            probes.dials.append(await _dial(prefill.id, host, port))
    _say_what_is_left(examined)
    return probes


async def _alone(
    client: httpx2.AsyncClient, examined: Examined, step: Step, kv_secrets: Sequence[str]
) -> None:
    """One text to each, and what they call its blocks."""
    probes = examined.probes
    able = [seen for seen in examined.well if seen.instance.protocol in ANSWER_ALONE]
    why_not = hashes.why_not(able)
    if why_not:
        probes.not_checked["hash_seed_differs"] = why_not
    async with AsyncExitStack() as stack:
        ears = None
        if not why_not:
            ears = await stack.enter_async_context(hashes.listening(able, kv_secrets))
        text = prompt()
        tokens = {}
        for seen in able:
            answer = await _ask(client, seen, {"prompt": text})
            if isinstance(answer, str):
                probes.silent[seen.id] = answer
            elif ears is not None:
                tokens[seen.id] = await _tokens(client, seen, text)
            step()
        if ears is not None:
            found = await ears.names({one: known for one, known in tokens.items() if known})
            probes.hashes.update(found)
            if unheard := sorted(tokens.keys() - found.keys()):
                probes.not_checked["hash_seed_differs"] = (
                    f"nothing was heard of {', '.join(unheard)}: it does not publish KV events, or "
                    "for members of its fleet alone (--kv-events-secret-file), its port is closed, or "
                    "its blocks are longer than the probe"
                )


def _bears_hand_over(seen: SeenEngine) -> bool:
    return seen.instance.protocol == NIXL and (seen.kind == collect.OURS or seen.has_nixl is True)


def _crossings(examined: Examined) -> list[tuple[SeenEngine, SeenEngine]]:
    """Each prefill engine with one decode engine, and each of these with one of those."""
    pairs = [pair for pair in examined.pairs() if all(map(_bears_hand_over, pair))]
    seen: set[str] = set()
    chosen = []
    # Those come first of which neither was in one: every engine is in as few as can be.
    for fresh in (2, 1):
        for prefill, decode in pairs:
            if len({prefill.id, decode.id} - seen) >= fresh:
                chosen.append((prefill, decode))
                seen |= {prefill.id, decode.id}
    return chosen


async def _keep(client: httpx2.AsyncClient, seen: SeenEngine, text: str) -> SeenKept:
    answer = await _ask(client, seen, {"prompt": text, nixl.FIELD: nixl.ASK})
    if isinstance(answer, str):
        return SeenKept(trouble=answer)
    params = answer.get(nixl.FIELD)
    return SeenKept(params if isinstance(params, dict) and params else None)


async def _cross(
    client: httpx2.AsyncClient, examined: Examined, prefill: SeenEngine, decode: SeenEngine
) -> None:
    """What prefill keeps is fetched at once, so that nothing expires there."""
    probes = examined.probes
    text = prompt()
    kept = probes.kept[prefill.id] = await _keep(client, prefill, text)
    if kept.params:
        probes.crossings.append(await _fetch(client, prefill, decode, text, kept))
    elif decode.id not in probes.turned:
        probes.turned[decode.id] = await _keep(client, decode, prompt())


async def _fetch(
    client: httpx2.AsyncClient, prefill: SeenEngine, decode: SeenEngine, text: str, kept: SeenKept
) -> Crossing:
    before = await collect.page_of(client, decode.instance)
    answer = await _ask(client, decode, {"prompt": text, nixl.FIELD: kept.params})
    if isinstance(answer, str):
        return Crossing(prefill.id, decode.id, answer)
    usage = answer.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    if not isinstance(count, int):
        return Crossing(prefill.id, decode.id)
    taken = await _taken(client, decode, before, count)
    return Crossing(prefill.id, decode.id, "", count, taken)


async def _taken(
    client: httpx2.AsyncClient, decode: SeenEngine, before: parsing.SeenMetrics, wanted: int
) -> int | None:
    """Tokens from prefill that it counts since then; others' calls count along."""
    if before.taken_tokens is None:
        return None
    taken = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(COUNTED_SECONDS):
            while True:
                after = await collect.page_of(client, decode.instance)
                taken = (after.taken_tokens or 0) - before.taken_tokens
                # The last token is decode's own in any case, and an incomplete block may be.
                if taken >= wanted / 2:
                    break
                await asyncio.sleep(0.1)
    return taken


async def _ask(
    client: httpx2.AsyncClient, seen: SeenEngine, fields: dict[str, Any]
) -> dict[str, Any] | str:
    """The answer, or what came instead of a good one."""
    model = seen.instance.model or min(seen.cards)
    body = {"model": model, "max_tokens": 1, "min_tokens": 1, "stream": False, **fields}
    headers = {"x-request-id": f"pdgate-doctor-{uuid.uuid4().hex}"}
    try:
        answer = await client.post(
            f"{seen.instance.url}/v1/completions", json=body, headers=headers
        )
        found = answer.json()
    except httpx2.HTTPError as error:
        return str(error) or type(error).__name__
    except ValueError:
        return f"{answer.status_code} {answer.text[:MAX_SHOWN]}"
    if answer.status_code != 200 or not isinstance(found, dict):
        return f"{answer.status_code} {_message(found)}"
    return found


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return (message if isinstance(message, str) else json.dumps(body))[:MAX_SHOWN]


async def _tokens(client: httpx2.AsyncClient, seen: SeenEngine, text: str) -> tuple[int, ...]:
    model = seen.instance.model or min(seen.cards)
    try:
        answer = await client.post(
            f"{seen.instance.url}/tokenize", json={"model": model, "prompt": text}
        )
        return parsing.tokens(answer.json()) or ()
    except (httpx2.HTTPError, ValueError):
        return ()


def _addresses(examined: Examined, prefill: SeenEngine) -> list[tuple[str, int]]:
    """Where its KV is fetched, each once; without those that mean another machine there."""
    found = []
    kept = examined.probes.kept.get(prefill.id)
    if kept is not None and kept.address is not None:
        found.append(kept.address)
    if prefill.bootstrap is not None:
        found += prefill.bootstrap.workers
    if prefill.instance.protocol == SGLANG:
        found.append(prefill.instance.kv_address(SGLANG_PORT))
    return list(dict.fromkeys(found))


async def _dial(instance: str, host: str, port: int) -> Dial:
    """As a load balancer's check does: it connects, says nothing, and goes."""
    try:
        async with asyncio.timeout(DIAL_SECONDS):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return Dial(instance, host, port, f"no answer within {DIAL_SECONDS:g} s")
    except (OSError, OverflowError) as error:
        return Dial(instance, host, port, getattr(error, "strerror", None) or str(error))
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return Dial(instance, host, port)


def _say_what_is_left(examined: Examined) -> None:
    """Of which no hand-over was asked."""
    others = [
        seen.id
        for seen in examined.well
        if seen.instance.protocol != PLAIN and not _bears_hand_over(seen)
    ]
    if others:
        why = (
            f"{', '.join(others)} may not bear it: their protocol is not vllm-nixl, or their metrics "
            "do not show its connector"
        )
        for check in ("keeps_no_kv", "hand_over_fails", "kv_not_taken"):
            examined.probes.not_checked.setdefault(check, why)
