"""Whoever makes the caller wait least, as far as engines have shown how fast they are.

Prefill and plain engines by when the first token would come: behind what is unread there, and
what this prompt has that the engine has not cached. Decode engines by how long a step would take.
"""

from pdgate.protocols.instance import Role
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence import Best, Sentence
from pdgate.scheduling.sentence.times import first_token_soon, steps_quick
from pdgate.scheduling.sentence.words import fits
from pdgate.scheduling.surroundings import Surroundings

NEAR = 0.05


def least_latency(around: Surroundings) -> Policy:
    soon, quick = (1.0, first_token_soon(around)), (1.0, steps_quick(around))
    match around.role:
        case Role.DECODE:
            return Sentence(keep=[fits], prefer=[quick], choose=Best(around.random), near=NEAR)
        case Role.PREFILL:
            prefer = [soon]
        case _:
            prefer = [soon, quick]
    return Sentence(
        keep=[fits], prefer=prefer, choose=Best(around.random), prefixes=around.prefixes
    )
