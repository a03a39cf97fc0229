"""Checks of engines that die, or of decode that is late: another answers, or the client hears why.

All of them have engines of their own.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from pdgate.forwarders.base import CallbackPort, Plain
from pdgate.lab.conformance.answer import MalformedAnswer, difference
from pdgate.lab.conformance.api import ApiRefused
from pdgate.lab.conformance.check import Broken, NotApplicable, check
from pdgate.lab.conformance.site import Made, Site
from pdgate.protocols.call import COMPLETIONS

DOOMED = ("--die-after", "0")
CALLS = 4
MOST_CALLS = 12
"""Until each engine that is to die has been asked: where decode is asked first, prefill's turn comes later."""
SERVER_ERROR = 500
SHORT_LEASE = "0.5"
BUSY_TOKENS = 120
TOKEN_MS = "15"


@check(
    "killed-engines",
    "When engines die before the first byte, others answer, or the client gets a clear error.",
)
async def KILLED_ENGINES(site: Site) -> None:
    # The dying stand first in line; beside them is one that can answer.
    prefills: list[Made] = [DOOMED, *site.prefills] if site.prefills else []
    async with _pairs(site, prefills, [DOOMED, *site.decodes]) as harmed:
        victims = [*harmed.prefills[:1], harmed.decodes[0]]
        for _ in range(MOST_CALLS):
            await _answered(harmed, harmed.fresh(30))
            victims = [one for one in victims if await one.answers()]
            if not victims:
                break
        else:
            told = ", ".join(one.flag.partition(",")[0] for one in victims)
            raise Broken(f"of {MOST_CALLS} calls none reached the engine that was to die: {told}")
        if told := await _answered(harmed, harmed.fresh(30)):
            raise Broken(f"after their death: {told}")


@check(
    "late-decode",
    "A decode engine that comes when prefill's lease is over never answers with the KV of others.",
)
async def LATE_DECODE(site: Site) -> None:
    if isinstance(site.forwarder, Plain):
        raise NotApplicable("it hands no KV over")
    slow = ("--max-num-seqs", "1", "--min-itl-ms", TOKEN_MS)
    async with _pairs(site, [("--lease-seconds", SHORT_LEASE)], [slow]) as late:
        busy = late.body(late.fresh(), max_tokens=BUSY_TOKENS, ignore_eos=True, stream=True)
        async with late.gateway.stream(COMPLETIONS, busy) as (_, events):
            await anext(events)
            prompts = [late.fresh(40) for _ in range(CALLS)]
            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(_answered(late, prompt)) for prompt in prompts]
                async for _ in events:
                    pass
        for task in asked:
            task.result()
        # Whatever became of those, the next one is served.
        if told := await _answered(late, late.fresh(40)):
            raise Broken(f"and afterwards: {told}")


def _pairs(
    site: Site, prefills: Sequence[Made], decodes: Sequence[Made]
) -> AbstractAsyncContextManager[Site]:
    if site.lab is None:
        raise NotApplicable("it harms engines, so it is asked of reference engines only")
    callback = site.forwarder.callback
    if callback is not None and callback.port is CallbackPort.NOTIFICATIONS:
        raise NotApplicable("its prefill engines notify one gateway, and this takes another one")
    return site.lab.pairs(prefills, decodes)


async def _answered(site: Site, prompt: str) -> str:
    """The error, if there was one that a client understands. Raises Broken for another, or a wrong answer."""
    body = site.body(prompt)
    try:
        found = await site.gateway.ask(COMPLETIONS, body)
    except ApiRefused as refused:
        if refused.status < SERVER_ERROR or not refused.error.get("message"):
            raise Broken(f"the client reads: {refused}") from None
        return str(refused)
    except MalformedAnswer as malformed:
        raise Broken(str(malformed)) from None
    if told := difference(found, await site.alone.ask(COMPLETIONS, body)):
        raise Broken(f"a wrong answer: {told}")
    return ""
