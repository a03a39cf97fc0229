"""Whether one more call would find engines with room now.

    prefill   one that has fewer calls than it may
    decode    fewer calls of the model have begun than all decode engines may have, and one of
              them has KV pages

Calls are counted against decode from their start, not when decode gets them: what prefill has
computed must be taken by somebody. What engines say of their KV pages is a few seconds old, so
it only stops a call; it never lets more begin than the counts do.

Workers of one gateway take turns for a place, and replicas cannot: each has the limits for itself.
"""

from collections.abc import Sequence

from pdgate.protocols.instance import DECODE, PLAIN, PREFILL
from pdgate.scheduling.admission.limits import Limits
from pdgate.scheduling.admission.others import NOBODY, Others, may_have_one_more
from pdgate.scheduling.candidate import Candidate
from pdgate.scheduling.lineup import Lineup
from pdgate.scheduling.neighbours import calls_of_this_gateway


class Room:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def for_one_more(
        self,
        lineup: Lineup,
        begun: int,
        beginning: int,
        others: Others = NOBODY,
        since: int | None = None,
    ) -> bool:
        """
        Args:
            begun: Calls of this model that have begun and not ended, `beginning` included.
            beginning: Those of them that no engine has been reserved for yet.
            others: Other processes, with which the limits are kept together.
            since: When one of our line last began, monotonic ns; None for who has just come.
        """
        up = lineup.up
        if not lineup.disaggregated and up[PLAIN]:
            return self._can_answer(up[PLAIN], begun, others, since)
        return self._can_answer(up[DECODE], begun, others, since) and self._can_read(
            up[PREFILL], beginning, others, since
        )

    def _can_answer(
        self, engines: Sequence[Candidate], begun: int, others: Others, since: int | None
    ) -> bool:
        """Without an engine there is nothing to wait for here: the call is told so at once."""
        if not engines:
            return True
        limit, kv_free = self._limits.decode_concurrency, self._limits.kv_free
        if limit is not None:
            places = limit * len(engines)
            if begun + others.begun >= places:
                return False
            if not may_have_one_more(places, begun, others, since):
                return False
        return kv_free is None or any(_kv_free(engine) >= kv_free for engine in engines)

    def _can_read(
        self, engines: Sequence[Candidate], beginning: int, others: Others, since: int | None
    ) -> bool:
        limit = self._limits.prefill_concurrency
        if limit is None or not engines:
            return True
        without_place = beginning + others.beginning
        for engine in engines:
            without_place -= max(0, limit - calls_of_this_gateway(engine))
            if without_place < 0:
                if others.since is None:
                    # As `may_have_one_more` would say, whatever we have.
                    return True
                own = beginning + sum(engine.own_calls for engine in engines)
                return may_have_one_more(limit * len(engines), own, others, since)
        return False


def _kv_free(engine: Candidate) -> float:
    """All of it, of one that does not say."""
    status = engine.status
    return 1.0 if status is None or status.kv_free is None else status.kv_free
