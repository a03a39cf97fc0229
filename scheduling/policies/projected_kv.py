"""Most KV left, once the engine has this call and all that is on its way there.

Decode ends where memory does: an engine that runs out of it makes calls wait, or starts some of
them again. Engines that say nothing of their memory are compared by the tokens that are in flight.
"""

from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence import Best, Sentence
from pdgate.scheduling.sentence.words import fits, room
from pdgate.scheduling.surroundings import Surroundings

NEAR = 0.05


def projected_kv(around: Surroundings) -> Policy:
    return Sentence(keep=[fits], prefer=[(1.0, room)], choose=Best(around.random), near=NEAR)
