"""Checks of what is left when calls end, or clients leave: nothing, by the engines' own metrics."""

import asyncio
from time import monotonic

from pdgate.lab.conformance.bench import LEASE_SECONDS
from pdgate.lab.conformance.check import Broken, NotApplicable, check
from pdgate.lab.conformance.checks.answers import STREAM
from pdgate.lab.conformance.metrics import BUSY, GENERATED, HELD, LEASES_ENDED, EngineUnderTest
from pdgate.lab.conformance.site import Site, until
from pdgate.protocols.call import CHAT, COMPLETIONS

SOON_SECONDS = 20.0
"""For a busy machine, where prefill engines count what was free only by the end of a lease."""

UNCOUNTED_SECONDS = 3.0
"""Where they do not. Less than a lease: what is free by then was released."""

LONG_ANSWER = 2000
"""Tokens: an engine without an order to stop would go on for long."""


@check(
    "release", "When calls have been answered, no engine keeps KV of them, and no lease ran out."
)
async def RELEASE(site: Site) -> None:
    # What earlier calls have left is theirs.
    await _nothing_left(site, 3 * LEASE_SECONDS)
    before = await _leases(site)
    for more in ({}, STREAM):
        await site.completes(site.fresh(40), **more)
        await site.chats(site.fresh(40), **more)
        await site.completes(site.fresh(40), max_tokens=1, **more)
        await site.completes([site.fresh(20), site.fresh(30)], **more)
        # Drawn: vLLM refuses several greedy choices, as they would be the same.
        await site.completes(site.fresh(20), n=2, temperature=0.9, seed=7, **more)
    counted = all(page.has(LEASES_ENDED) for page in await site.pages(site.prefills))
    await _nothing_left(site, SOON_SECONDS if counted else UNCOUNTED_SECONDS)
    if (after := await _leases(site)) > before:
        raise Broken(f"{after - before:.0f} prompts were kept until their lease was over")


@check("cancel", "A client that leaves in the middle of a stream ends both legs.")
async def CANCEL(site: Site) -> None:
    pages = await site.pages(site.decodes)
    if not all(page.has(GENERATED) for page in pages):
        raise NotApplicable(f"the decode engines do not tell {GENERATED}")
    before = sum(page.sum(GENERATED) for page in pages)
    for path, body in (
        (COMPLETIONS, site.body(site.fresh(40), max_tokens=LONG_ANSWER, ignore_eos=True)),
        (CHAT, site.chat(site.fresh(40), max_tokens=LONG_ANSWER, ignore_eos=True)),
    ):
        async with site.gateway.stream(path, body | {"stream": True}) as (_, events):
            await anext(events)
    await _nothing_left(site, 2 * LEASE_SECONDS)
    made = sum(page.sum(GENERATED) for page in await site.pages(site.decodes)) - before
    if made >= 2 * LONG_ANSWER:
        raise Broken(f"decode engines made all {made:.0f} tokens for clients that had left")


@check("cancel-early", "A client that leaves before the first token leaves nothing behind.")
async def CANCEL_EARLY(site: Site) -> None:
    for delay in (0.0, 0.01, 0.03):
        body = site.body(site.fresh(120), max_tokens=LONG_ANSWER, ignore_eos=True)
        asking = asyncio.create_task(site.gateway.post(COMPLETIONS, body))
        await asyncio.wait((asking,), timeout=delay)
        asking.cancel()
        await asyncio.wait((asking,))
    # What decode never heard of is prefill's until its lease is over.
    await _nothing_left(site, 3 * LEASE_SECONDS)


async def _leases(site: Site) -> float:
    return sum(page.sum(LEASES_ENDED) for page in await site.pages(site.prefills))


async def _nothing_left(site: Site, seconds: float) -> None:
    """Raises Broken."""
    if not any(page.has(*BUSY) for page in await site.pages(site.engines)):
        raise NotApplicable("the engines do not tell how many calls they have")

    async def what() -> str:
        left = [await _left(engine) for engine in site.engines]
        return "; ".join(filter(None, left))

    if told := await until(what, seconds, monotonic):
        raise Broken(f"after {seconds:.0f} s: {told}")


async def _left(engine: EngineUnderTest) -> str:
    page = await engine.page()
    found = {name: page.sum(name) for name in (*BUSY, *HELD) if page.sum(name)}
    told = ", ".join(f"{name} is {number:g}" for name, number in found.items())
    return f"{engine.flag.partition(',')[0]}: {told}" if told else ""
