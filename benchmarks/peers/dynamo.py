"""The KV router of NVIDIA Dynamo: least cost, or by lot among low costs.

    cost = prefill_load_scale * max(0, prefill blocks - overlap credit * overlap blocks)
         + decode blocks

    prefill blocks   tokens that wait to be read there, and this prompt's
    overlap blocks   of this prompt, what is cached there
    decode blocks    of all calls there, this one included

Scale and credit are 1. A decode router's credit is 0 (load only), and it has no prefill to count.
With a temperature, chances fall with exp(-cost / (range of costs * temperature)); it is 0 by default,
which is the least cost, drawn among equals.

Source: ai-dynamo/dynamo at 07a6c9c, lib/kv-router/src/scheduling/selector/default.rs, worker_logit,
softmax_sample_index and minimum_cost_index.
"""

from collections.abc import Sequence
from math import exp
from random import Random
from typing import Final

from pdgate.protocols.call import Call
from pdgate.protocols.instance import Role
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext, Prefixes

BLOCK_TOKENS: Final = 16
"""Costs are compared only, so this changes nothing."""

TEMPERATURE: Final = 0.5
"""Of `softmax_dynamo`: Dynamo publishes no value other than 0."""


class Dynamo(Policy):
    def __init__(
        self, role: Role, prefixes: Prefixes | None, random: Random, temperature: float = 0.0
    ) -> None:
        self.needs_prefixes = role is not Role.DECODE
        self._role = role
        self._prefixes = prefixes
        self._random = random
        self._temperature = temperature

    @classmethod
    def made(cls, context: PolicyContext) -> Policy:
        return cls(context.role, context.prefixes, context.random)

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        costs = self._costs(call, endpoints)
        least, most = min(costs), max(costs)
        if self._temperature and most > least:
            per_cost = 1 / ((most - least) * self._temperature)
            chances = [exp((least - cost) * per_cost) for cost in costs]
            return self._random.choices(endpoints, chances)[0]
        return self._random.choice(
            [one for one, cost in zip(endpoints, costs, strict=True) if cost == least]
        )

    def _costs(self, call: Call, endpoints: Sequence[Endpoint]) -> list[float]:
        decode = [(one.tokens + call.prompt_tokens) / BLOCK_TOKENS for one in endpoints]
        if self._role is Role.DECODE:
            return decode
        cached = {} if self._prefixes is None else self._prefixes.matched(call)
        return [
            max(0, one.unread_tokens + call.prompt_tokens - cached.get(one.instance.id, 0))
            / BLOCK_TOKENS
            + blocks
            for one, blocks in zip(endpoints, decode, strict=True)
        ]


def softmax_dynamo(context: PolicyContext) -> Policy:
    return Dynamo(context.role, context.prefixes, context.random, TEMPERATURE)
