"""Who has most of the prompt, unless others have much less to do: match - load.

(1.0, cached_share)   all of the prompt is worth as much as
(1.0, idleness)       MANY_TOKENS in flight there instead of none, twice
"""

from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence import Best, Sentence
from pdgate.scheduling.sentence.words import cached_share, fits, idleness
from pdgate.scheduling.surroundings import Surroundings


def prefix_then_load(around: Surroundings) -> Policy:
    return Sentence(
        keep=[fits],
        prefer=[(1.0, cached_share(around)), (1.0, idleness)],
        choose=Best(around.random),
        prefixes=around.prefixes,
    )
