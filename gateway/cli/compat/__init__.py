"""Flags of other routers, as flags of `pdgate serve`.

    pdgate serve --compat vllm-router --vllm-pd-disaggregation --prefill http://p:8000 --decode http://d:8000

What is left of the command line after that is ours, and goes over it.
"""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Final

from pdgate.gateway.cli.compat import toy_proxy, vllm_router
from pdgate.gateway.cli.compat.translation import FlagTranslation, NotTaken

FLAG: Final = "--compat"

ROUTERS: Final[Mapping[str, Callable[[Sequence[str]], FlagTranslation]]] = {
    "vllm-router": vllm_router.translated,
    "vllm-toy-proxy": toy_proxy.translated,
}

__all__ = ["FLAG", "ROUTERS", "FlagTranslation", "NotTaken", "translation"]


def translation(args: Sequence[str]) -> FlagTranslation | None:
    """Translate the flags of another router; None where none is announced. Raise NotTaken."""
    name, rest = _named(args)
    if name is None:
        return None
    if name not in ROUTERS:
        near = get_close_matches(name, ROUTERS, 1)
        hint = f"; did you mean {near[0]}?" if near else f": {', '.join(ROUTERS)}"
        raise NotTaken(f"{FLAG} knows no {name!r}{hint}")
    return ROUTERS[name](rest)


def _named(args: Sequence[str]) -> tuple[str | None, list[str]]:
    rest = list(args)
    for at, arg in enumerate(rest):
        if arg == FLAG:
            if at + 1 == len(rest):
                raise NotTaken(f"{FLAG} needs a name: {', '.join(ROUTERS)}")
            return rest[at + 1], rest[:at] + rest[at + 2 :]
        if arg.startswith(f"{FLAG}="):
            return arg.partition("=")[2], rest[:at] + rest[at + 1 :]
    return None, rest
