"""Scorers of llm-d's endpoint picker: each 0..1 for every endpoint, weighted and added; the highest wins.

    prefix-cache-scorer           matched blocks / blocks of the prompt
    queue-scorer                  (longest queue - its own) / (longest - shortest); 1 if all are alike
    kv-cache-utilization-scorer   1 - share of KV that is taken

    llm_d      prefix 3, queue 2, KV 2   what its guides recommend
    llm_d_pd   prefix 2, queue 1         its sample for prefill and decode, the same for both

Queues and KV are polled there, from engines; here the queue is our account of calls, which is never
old. Its sample matches at most 4096 tokens of a prompt; here all are, which can only help.

Source: llm-d/llm-d-router, deploy/config/pd-epp-config.yaml at e068bab, and
pkg/epp/framework/plugins/scheduling/scorer/{prefix,queuedepth,kvcacheutilization}; weights 3, 2, 2:
llm-d/llm-d, guides/precise-prefix-cache-routing.
"""

from collections.abc import Sequence
from random import Random

from pdgate.protocols.call import Call
from pdgate.scheduling.account import kv_free_after
from pdgate.scheduling.endpoint import Endpoint
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import PolicyContext, Prefixes


class Scorers(Policy):
    needs_prefixes = True

    def __init__(
        self, prefixes: Prefixes | None, random: Random, *, prefix: float, queue: float, kv: float
    ) -> None:
        """`prefix`, `queue`, `kv`: weights."""
        self._prefixes = prefixes
        self._random = random
        self._prefix, self._queue, self._kv = prefix, queue, kv

    def choose(self, call: Call, endpoints: Sequence[Endpoint]) -> Endpoint:
        cached = {} if self._prefixes is None else self._prefixes.matched(call)
        queues = [one.calls for one in endpoints]
        longest, spread = max(queues), max(queues) - min(queues)
        scores = []
        for one, queue in zip(endpoints, queues, strict=True):
            score = self._prefix * cached.get(one.instance.id, 0) / call.prompt_tokens
            score += self._queue * ((longest - queue) / spread if spread else 1.0)
            if self._kv:
                free = kv_free_after(call, one)
                score += self._kv * max(0.0, 1.0 if free is None else free)
            scores.append(score)
        best = max(scores)
        return self._random.choice(
            [one for one, score in zip(endpoints, scores, strict=True) if score == best]
        )


def llm_d(context: PolicyContext) -> Policy:
    return Scorers(context.prefixes, context.random, prefix=3, queue=2, kv=2)


def llm_d_pd(context: PolicyContext) -> Policy:
    return Scorers(context.prefixes, context.random, prefix=2, queue=1, kv=0)
