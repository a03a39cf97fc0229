"""Candidates for policies to choose from, and prefixes of which the test says who has them."""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Instance, Role
from pdgate.protocols.place import NOWHERE, Place
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.status import Beyond
from tests.support.scripted import chat


def prompt(tokens: int, **fields: object) -> Call:
    """A call whose prompt counts as so many."""
    return msgspec.structs.replace(chat(**fields), prompt_tokens=tokens)


def fleet(count: int, role: Role = Role.PREFILL) -> list[Candidate]:
    """Idle ones, called "0", "1" and so on."""
    return [
        Candidate(Instance(str(n), f"http://e{n}", role, "vllm-nixl"), up=True)
        for n in range(count)
    ]


def holding(candidate: Candidate, kv_capacity: int) -> Candidate:
    """It has said how many tokens it can hold."""
    candidate.beyond = Beyond(kv_capacity=kv_capacity)
    return candidate


def at(candidate: Candidate, place: Place = NOWHERE) -> Candidate:
    candidate.instance = replace(candidate.instance, place=place)
    return candidate


class Known:
    """Who has how many tokens of any prompt."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.tokens = tokens

    def matched(self, call: Call) -> Mapping[str, int]:
        return self.tokens

    def cached_share(self, call: Call, candidate: Candidate) -> float:
        return self.tokens.get(candidate.instance.id, 0) / call.prompt_tokens
