"""Restart detection: has a prefill engine come back from a restart under its old engine id?

NIXL's decode engines know a prefill engine by its engine id. vLLM draws a new one at each start;
if the configuration pins it, every decode engine that has met the old process goes on talking
to that one, and each transfer fails, for good (7 of 7 in a minute, vLLM 0.32.0). It looks like any
other 500, so it is named here, once: the engine refused connections, came back with the id of
before, and decode has failed over its KV since, FAILURES times.

Only the first answer of each life is read for the id, so a call pays for one look into a table.
"""

import logging
from collections import Counter
from typing import Final

from pdgate.forwarders.base import Forwarder
from pdgate.protocols.call import Json

log = logging.getLogger(__name__)

FAILURES: Final = 2
"""One may have had any other cause."""


class Lives:
    """
    Attributes:
        pinned: Instances that were found out, since they were seen to refuse last.
        met: Instance -> the engine id of this life, None where its answers name none.
    """

    def __init__(self) -> None:
        self.pinned: set[str] = set()
        self.met: dict[str, str | None] = {}
        self._before: dict[str, str] = {}
        self._failures: Counter[str] = Counter()

    def refused(self, prefill: str) -> None:
        """No process listens there: this life is over."""
        over = self.met.pop(prefill, None)
        if over is not None:
            self._before[prefill] = over
        self._failures.pop(prefill, None)
        self.pinned.discard(prefill)

    def answered(self, prefill: str, forwarder: Forwarder, reply: Json) -> None:
        """Its first since it is not in `met`: it has computed a prompt, and said where the KV is."""
        self.met[prefill] = forwarder.engine_id(reply)

    def decode_failed(self, prefill: str) -> None:
        """A decode engine took the call and failed with this one's KV."""
        found = self.met.get(prefill)
        if found is None or found != self._before.get(prefill) or prefill in self.pinned:
            return
        self._failures[prefill] += 1
        if self._failures[prefill] >= FAILURES:
            self.pinned.add(prefill)
            log.warning(
                "the prefill engine %s was away, is back under the same engine id, and decode "
                "engines fail over its KV: if it was restarted, its engine_id is pinned, and "
                "they will fail for ever. Remove engine_id from its kv_transfer_config.",
                prefill,
            )
