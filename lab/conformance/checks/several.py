"""Checks of several prompts or choices in a call, and of the odd sizes."""

from pdgate.lab.conformance.check import Broken, check
from pdgate.lab.conformance.checks.answers import STREAM, same
from pdgate.lab.conformance.site import Site
from pdgate.protocols.call import CHAT, COMPLETIONS


@check("several-choices", "n choices are n answers, those that the engine alone gives.")
async def SEVERAL_CHOICES(site: Site) -> None:
    drawn = {"n": 3, "temperature": 0.9, "seed": 7}
    for more in ({}, STREAM):
        how = "streamed" if more else "in one piece"
        asked = site.body(site.fresh(), **drawn, **more)
        await same(site, COMPLETIONS, asked, f"completions, {how}")
        await same(site, CHAT, site.chat(site.fresh(), **drawn, **more), f"chat, {how}")


@check("lists-of-prompts", "Each prompt of a list is answered, in its place.")
async def LISTS_OF_PROMPTS(site: Site) -> None:
    for count in (1, 3):
        for more in ({}, STREAM):
            prompts = [site.fresh(4 * number + 3) for number in range(count)]
            asked = site.body(prompts, **more)
            found = await site.gateway.ask(COMPLETIONS, asked)
            if len(found.choices) != count:
                raise Broken(f"of {count} prompts {len(found.choices)} were answered")
            await same(site, COMPLETIONS, asked, f"a list of {count}")


@check("token-ids", "Prompts may be token ids, one list of them or several.")
async def TOKEN_IDS(site: Site) -> None:
    text = site.fresh()
    # Ids that each model has; what they mean is of no matter here.
    ids = [1, *(ord(letter) for letter in text)]
    for prompt in (ids, [ids[:20], ids[:30]]):
        await same(site, COMPLETIONS, site.body(prompt), "token ids")


@check("short-answers", "Answers of one token and of two are whole: the first is not said twice.")
async def SHORT_ANSWERS(site: Site) -> None:
    for limit in (1, 2):
        for more in ({}, STREAM):
            what = f"max_tokens {limit}" + (", streamed" if more else "")
            for words in (1, 30):
                asked = site.body(site.fresh(words), max_tokens=limit, **more)
                await same(site, COMPLETIONS, asked, what)
            await same(site, CHAT, site.chat(site.fresh(), max_tokens=limit, **more), what)
