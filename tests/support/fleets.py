"""Endpoints for policies to choose from, and prefixes of which the test says who has them."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import NOWHERE, Place
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.status import Beyond
from tests.support.scripted import chat


def prompt(tokens: int, **fields: object) -> Call:
    """A call whose prompt counts as so many."""
    return msgspec.structs.replace(chat(**fields), prompt_tokens=tokens)


def fleet(count: int, role: Role = Role.PREFILL) -> list[Endpoint]:
    """Idle ones, called "0", "1" and so on."""
    return [
        Endpoint(Instance(str(n), f"http://e{n}", role, "vllm-nixl"), up=True) for n in range(count)
    ]


def holding(endpoint: Endpoint, kv_capacity: int) -> Endpoint:
    """It has said how many tokens it can hold."""
    endpoint.beyond = Beyond(kv_capacity=kv_capacity)
    return endpoint


def at(endpoint: Endpoint, place: Place = NOWHERE) -> Endpoint:
    endpoint.instance = replace(endpoint.instance, place=place)
    return endpoint


class Known:
    """Who has how many tokens of any prompt."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = tokens

    def matched(self, call: Call) -> Mapping[str, int]:
        return self.tokens

    def cached_share(self, call: Call, endpoint: Endpoint) -> float:
        return self.tokens.get(endpoint.instance.id, 0) / call.prompt_tokens
