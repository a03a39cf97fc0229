"""Checks of refusals: the client learns of its mistake, and no other engine is tried."""

from collections.abc import Mapping
from typing import Any

import httpx2

from pdgate.lab.conformance.api import ApiRefused
from pdgate.lab.conformance.check import Broken, check
from pdgate.lab.conformance.site import Site
from pdgate.protocols.call import CHAT, COMPLETIONS

LONG_WORDS = 60_000
"""More than a context has, and less than a gateway takes."""

HAND_OVER = (
    "kv_transfer_params",
    "bootstrap_host",
    "bootstrap_room",
    "transfer_id",
    "disagg_spec",
)


@check(
    "bad-input", "A 4xx of an engine stays what it is: status, and an error object with its reason."
)
async def BAD_INPUT(site: Site) -> None:
    text = site.fresh()
    for what, path, body in (
        ("max_tokens of -1", COMPLETIONS, site.body(text, max_tokens=-1)),
        ("a temperature of 'hot'", CHAT, site.chat(text, temperature="hot")),
        ("no messages", CHAT, {"model": site.model, "messages": []}),
        ("an empty list of prompts", COMPLETIONS, site.body([])),
        ("a prompt beyond the context", COMPLETIONS, site.body("long " * LONG_WORDS)),
    ):
        expected = await _refusal(site.alone, path, body)
        found = await _refusal(site.gateway, path, body)
        if expected is None:
            # What this engine takes, another may refuse.
            continue
        if found is None:
            raise Broken(f"{what} is answered, where the engine alone says {expected.status}")
        if found.status != expected.status:
            raise Broken(f"{what}: {found.status}, where the engine alone says {expected.status}")
        if not found.error.get("message"):
            raise Broken(f"{what}: {found.status} without an error object that has a message")
    await site.completes(text)


@check(
    "foreign-peers", "A client cannot say where KV comes from: fields of the hand-over are a 400."
)
async def FOREIGN_PEERS(site: Site) -> None:
    for name in (*HAND_OVER, *sorted(site.forwarder.own_fields)):
        body = site.body(site.fresh(), **{name: {"remote_host": "192.0.2.1"}})
        found = await _refusal(site.gateway, COMPLETIONS, body)
        if found is None or found.status != httpx2.codes.BAD_REQUEST:
            raise Broken(f"a call with {name} is {found or 'answered'}")


async def _refusal(api: Any, path: str, body: Mapping[str, Any]) -> ApiRefused | None:
    """None if it was answered."""
    try:
        await api.post(path, body)
    except ApiRefused as refused:
        return refused
    return None
