"""Who can keep what callers were promised, and of those whoever it costs least.

    keep     fits, and the targets: first token in time (prefill, plain), steps in time (decode, plain)
    prefer   a cached prompt, which leaves time to others, and who has time to spare

Where nobody can keep a target, the keep is passed over and counted, and whoever comes closest gets
the call: to refuse it is for who limits (scheduling/admission), not for who chooses.
"""

from pdgate.protocols.instance import Role
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.sentence import Best, Sentence
from pdgate.scheduling.sentence.times import (
    first_token_in_time,
    first_token_soon,
    steps_in_time,
    steps_quick,
)
from pdgate.scheduling.sentence.words import cached_share, fits
from pdgate.scheduling.surroundings import Surroundings

NEAR = 0.05


def slo(around: Surroundings) -> Policy:
    if around.role is Role.DECODE:
        return Sentence(
            keep=[fits, steps_in_time(around)],
            prefer=[(1.0, steps_quick(around))],
            choose=Best(around.random),
            near=NEAR,
        )
    in_time, prefer = [first_token_in_time(around)], [(1.0, first_token_soon(around))]
    if around.role is Role.PLAIN:
        in_time.append(steps_in_time(around))
        prefer.append((1.0, steps_quick(around)))
    return Sentence(
        keep=[fits, *in_time],
        prefer=[(1.0, cached_share(around)), *prefer],
        choose=Best(around.random),
        prefixes=around.prefixes,
    )
