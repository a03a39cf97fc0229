"""Policies that can be read aloud: keep these, prefer those, choose so.

    def prefix_then_load(around: Surroundings) -> Policy:
        return Sentence(
            keep=[has_room],
            prefer=[(1.0, around.cached_share), (1.0, idleness)],
            choose=Best(around.random),
        )

sentence      keep, prefer, choose
pick          best, one of two, or by lot
shortlist     whom to look at among very many
whereabouts   whether it matters who is near
words         what is said of an engine, for all policies alike
"""

from pdgate.scheduling.sentence.pick import Best, Pick, PowerOfTwo, Softmax
from pdgate.scheduling.sentence.sentence import Sentence

__all__ = ["Best", "Pick", "PowerOfTwo", "Sentence", "Softmax"]
