"""Checks of answers: they are what one engine alone would have answered."""

from collections.abc import Mapping
from typing import Any

from pdgate.lab.conformance.answer import difference
from pdgate.lab.conformance.api import ApiRefused
from pdgate.lab.conformance.check import Broken, NotApplicable, check
from pdgate.lab.conformance.site import Site
from pdgate.protocols.call import CHAT, COMPLETIONS

STREAM: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
BAD_REQUEST = 400
LENGTHS = (1, 4, 30)
"""Words of prompts: shorter than a block of KV, about as long, many."""


async def same(site: Site, path: str, body: Mapping[str, Any], what: str) -> None:
    """Raises Broken where the gateway's answer is not the engine's."""
    found, expected = await site.both(path, body)
    if told := difference(found, expected):
        raise Broken(f"{what}: {told}")


@check(
    "same-tokens",
    "Greedy answers are those of one engine alone, by chat and by completions, for short and long "
    "prompts.",
)
async def SAME_TOKENS(site: Site) -> None:
    for words in LENGTHS:
        text = site.fresh(words)
        await same(site, COMPLETIONS, site.body(text), f"a completion of {words} words")
        text = site.fresh(words)
        await same(site, CHAT, site.chat(text), f"a chat of {words} words")


@check(
    "streams",
    "A stream is well-formed, and says what the same answer in one piece says.",
)
async def STREAMS(site: Site) -> None:
    for words in LENGTHS:
        for path, make in ((COMPLETIONS, site.body), (CHAT, site.chat)):
            text = site.fresh(words)
            streamed = await site.gateway.ask(path, make(text, **STREAM))
            whole = await site.gateway.ask(path, make(text))
            if told := difference(streamed, whole):
                raise Broken(f"{path}: streamed, {told}")


TRIES = 8
"""Until an answer is long enough: a model may end the answers to all texts of one length at once."""


@check("seeds", "A seeded draw is the one that the engine alone makes; another seed draws another.")
async def SEEDS(site: Site) -> None:
    for more_words in range(TRIES):
        text = site.fresh(12 + more_words)
        drawn = [site.body(text, temperature=1.0, max_tokens=16, seed=seed) for seed in (3, 4)]
        for body in drawn:
            await same(site, COMPLETIONS, body, f"seed {body['seed']}")
        one, other = [(await site.gateway.ask(COMPLETIONS, body)).only.text for body in drawn]
        if one != other:
            return
    raise Broken(
        f"two seeds draw the same 16 tokens at temperature 1, for {TRIES} prompts: {one!r}"
    )


@check("stop-strings", "A stop string ends the answer where it ends that of the engine alone.")
async def STOP_STRINGS(site: Site) -> None:
    for more_words in range(TRIES):
        text = site.fresh(12 + more_words)
        whole = (await site.completes(text, max_tokens=12)).only.text
        if len(whole) >= 6:
            break
    else:
        raise NotApplicable(f"the model says {whole!r}, too little to stop in")
    stop = [whole[3:5]]
    for more in ({}, STREAM):
        body = site.body(text, max_tokens=12, stop=stop, **more)
        await same(site, COMPLETIONS, body, "streamed" if more else "in one piece")


@check("logprobs", "Log-probabilities are there for each token, and those of the engine alone.")
async def LOGPROBS(site: Site) -> None:
    text = site.fresh()
    asked = site.body(text, logprobs=2)
    await same(site, COMPLETIONS, asked, "a completion")
    if not (await site.gateway.ask(COMPLETIONS, asked)).only.logprobs:
        raise NotApplicable("the engine gives none")
    for more in ({}, STREAM):
        asked = site.chat(site.fresh(), logprobs=True, top_logprobs=2, **more)
        await same(site, CHAT, asked, "a streamed chat" if more else "a chat")


@check(
    "prompt-logprobs",
    "Log-probabilities of the prompt, which only who reads it knows, are all there, or refused.",
)
async def PROMPT_LOGPROBS(site: Site) -> None:
    asked = site.body(site.fresh(), echo=True, logprobs=1, max_tokens=2)
    try:
        await same(site, COMPLETIONS, asked, "echo with logprobs")
    except ApiRefused as refused:
        # A protocol may have no way for them; what it must not do is to make them up.
        if refused.status != BAD_REQUEST:
            raise


@check("tools", "Both sides are told of a chat's tools: the answer is that of the engine alone.")
async def TOOLS(site: Site) -> None:
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "description": "Of a city, now.", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    for more in ({}, STREAM):
        asked = site.chat(site.fresh(), tools=tools, **more)
        await same(site, CHAT, asked, "streamed" if more else "in one piece")


@check("usage", "Usage counts the client's prompt and answer, and streams have it when asked.")
async def USAGE(site: Site) -> None:
    for limit in (1, 2, 9):
        asked = site.body(site.fresh(), max_tokens=limit, ignore_eos=True)
        found, expected = await site.both(COMPLETIONS, asked)
        if found.usage != expected.usage:
            raise Broken(f"max_tokens {limit}: usage is {found.usage} and not {expected.usage}")
    if (await site.completes(site.fresh(), **STREAM)).usage is None:
        raise Broken("a stream with include_usage has no usage")
    if (await site.completes(site.fresh(), stream=True)).usage is not None:
        raise Broken("a stream that was not to have usage has it")


@check(
    "engine-fields",
    "Fields that only the engine knows reach it: ignore_eos, min_tokens, top_k, return_token_ids.",
)
async def ENGINE_FIELDS(site: Site) -> None:
    asked = site.body(site.fresh(), ignore_eos=True, min_tokens=10, max_tokens=10)
    found, expected = await site.both(COMPLETIONS, asked)
    if expected.usage and expected.usage[1] != 10:
        raise NotApplicable("the engine itself does not know ignore_eos")
    if told := difference(found, expected):
        raise Broken(f"ignore_eos and min_tokens: {told}")
    asked = site.body(site.fresh(), temperature=1.0, seed=1, top_k=2, return_token_ids=True)
    await same(site, COMPLETIONS, asked, "top_k and return_token_ids")
