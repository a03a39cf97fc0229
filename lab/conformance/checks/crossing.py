"""Checks of how a call crosses engines: which legs, in which order, and whether KV really moved."""

import asyncio
from time import monotonic
from typing import Any

from pdgate.forwarders.base import Delegation, HandOff, Plain, Rendezvous
from pdgate.lab.conformance.answer import difference
from pdgate.lab.conformance.api import REQUEST_ID, ApiRefused
from pdgate.lab.conformance.check import Broken, NotApplicable, check
from pdgate.lab.conformance.metrics import BUSY, GENERATED, PROMPT_TOKENS, EngineUnderTest
from pdgate.lab.conformance.site import ENDS_SECONDS, Site, until
from pdgate.protocols.call import COMPLETIONS

PROMPTS = 4
WORDS = 40
BLOCK_TOKENS = 16
"""Of the reference engines."""
MOST_BLOCK_TOKENS = 256
"""Of other engines, which the gateway did not ask."""


def hands_over(site: Site) -> None:
    """Raises NotApplicable where no KV is handed over by design."""
    if isinstance(site.forwarder, Plain):
        raise NotApplicable("it hands no KV over")


@check(
    "order-of-legs",
    "Legs run as the pattern says: prefill's answer before decode is asked, both together, or "
    "decode alone.",
)
async def ORDER_OF_LEGS(site: Site) -> None:
    answer = await site.completes(site.fresh(WORDS))
    try:
        record = await site.record(answer.request_id)
    except ApiRefused:
        raise NotApplicable("the gateway does not serve /debug/calls (--debug-routes)") from None
    if record["outcome"] != "ok" or len(record["attempts"]) != 1:
        raise Broken(f"{len(record['attempts'])} attempts, outcome {record['outcome']}")
    legs = record["attempts"][0]["legs"]
    by_role: dict[str, Any] = {leg["role"]: leg for leg in legs}
    expected = {"prefill", "decode"}
    if isinstance(site.forwarder, Plain):
        expected = {"plain"}
    elif isinstance(site.forwarder, Delegation):
        expected = {"decode"}
    if by_role.keys() != expected or len(legs) != len(expected):
        raise Broken(f"legs to {[leg['role'] for leg in legs]} and not to {sorted(expected)}")
    if expected == {"plain"}:
        return
    if record["path"] != "disaggregated":
        raise Broken(f"its path is {record['path']}: {record['why_local']}")
    if record["kv"] != "handed_over":
        raise Broken("the gateway does not say that the KV was handed over")
    if isinstance(site.forwarder, HandOff):
        late = by_role["decode"]["started_ms"] - by_role["prefill"]["ended_ms"]
        if late < 0:
            raise Broken(f"decode was asked {-late:.1f} ms before prefill had answered")
    elif isinstance(site.forwarder, Rendezvous):
        early = by_role["prefill"]["ended_ms"] - by_role["decode"]["started_ms"]
        if early < 0:
            raise Broken(f"decode was asked {-early:.1f} ms after prefill had answered")


@check(
    "verified-transfer",
    "Decode engines compute no more of a prompt than its last token, or its last block where a protocol hands over "
    "whole ones, by their own count.",
)
async def VERIFIED_TRANSFER(site: Site) -> None:
    hands_over(site)
    before = await _counts(site.decodes)
    if before is None:
        raise NotApplicable(f"the decode engines do not tell {PROMPT_TOKENS}")
    for number in range(PROMPTS):
        await site.completes(site.fresh(WORDS + number))
    after = await _counts(site.decodes)
    assert after is not None
    computed, moved = after[0] - before[0], after[1] - before[1]
    spare = site.forwarder.decode_computes
    if spare != 1 and site.lab is not None:
        spare = BLOCK_TOKENS
    if computed > PROMPTS * (spare or MOST_BLOCK_TOKENS):
        raise Broken(f"for {PROMPTS} prompts they computed {computed:.0f} tokens")
    if moved <= 0:
        raise Broken("they received no KV")


@check("prefill-reads-only", "Prefill engines sample one token of a prompt at most.")
async def PREFILL_READS_ONLY(site: Site) -> None:
    hands_over(site)
    pages = await site.pages(site.prefills)
    if not all(page.has(GENERATED) for page in pages):
        raise NotApplicable(f"the prefill engines do not tell {GENERATED}")
    before = await _sampled(site)
    for stream in (False, True):
        for make in (site.completes, site.chats):
            await make(site.fresh(), stream=stream, max_tokens=8, ignore_eos=True)
    sampled = await _sampled(site) - before
    if sampled > 4:
        raise Broken(f"for 4 prompts they sampled {sampled:.0f} tokens")


@check(
    "request-ids",
    "A client's X-Request-Id comes back, one is made where there is none, and calls that share "
    "one do not mix.",
)
async def REQUEST_IDS(site: Site) -> None:
    if not (await site.completes(site.fresh())).request_id:
        raise Broken("an answer has no X-Request-Id")
    named = {REQUEST_ID: f"conformance-{site.fresh(1)}"}
    bodies = [site.body(site.fresh(WORDS)) for _ in range(PROMPTS)]
    async with asyncio.TaskGroup() as group:
        asking = [group.create_task(site.gateway.ask(COMPLETIONS, body, named)) for body in bodies]
    for body, task in zip(bodies, asking, strict=True):
        found = task.result()
        if found.request_id != named[REQUEST_ID]:
            raise Broken(f"{named[REQUEST_ID]} came back as {found.request_id}")
        if told := difference(found, await site.alone.ask(COMPLETIONS, body)):
            raise Broken(f"of {PROMPTS} calls of one name: {told}")


async def _sampled(site: Site) -> float:
    """Tokens of all prefill engines. Where KV is pushed, decode may have answered before prefill has its token."""

    async def busy() -> str:
        pages = await site.pages(site.prefills)
        return "busy" if any(page.sum(name) for page in pages for name in BUSY) else ""

    await until(busy, ENDS_SECONDS, monotonic)
    return sum(page.sum(GENERATED) for page in await site.pages(site.prefills))


async def _counts(engines: list[EngineUnderTest] | Any) -> tuple[float, float] | None:
    """Tokens of prompts that they computed, and that came from peers; None if they do not tell."""
    pages = [await engine.page() for engine in engines]
    if not all(page.has(PROMPT_TOKENS) for page in pages):
        return None
    computed, moved = (
        sum(page.sum(PROMPT_TOKENS, source=source) for page in pages)
        for source in ("local_compute", "external_kv_transfer")
    )
    return computed, moved
