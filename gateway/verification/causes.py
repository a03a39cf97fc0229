"""Why an engine does not take over KV, as far as its page tells, and what to do about it.

The likeliest cause, not a proof: an engine counts what happened, not why.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pdgate.gateway.engine_metrics.counters import Counters


class Cause(StrEnum):
    NO_CONNECTOR = "no_connector"
    LOADS_FAIL = "loads_fail"
    LEASES_EXPIRE = "leases_expire"
    KV_IGNORED = "kv_ignored"
    KV_INCOMPLETE = "kv_incomplete"
    READ_LATE = "read_late"


HINTS: Final[Mapping[Cause, str]] = {
    Cause.NO_CONNECTOR: "it runs without the KV connector of its protocol: look at how it was "
    "started (vLLM: --kv-transfer-config)",
    Cause.LOADS_FAIL: "its loads fail, and it computes what it could not load: its log says why "
    "(block size, model or version unlike prefill's, or prefill cannot be reached)",
    Cause.LEASES_EXPIRE: "prefill's leases end before it reads: raise the lease, or give decode "
    "more room",
    Cause.KV_IGNORED: "it has a connector, which takes no notice of the KV that calls name: look "
    "at its role (vLLM: kv_role), and whether its connector is that of pdd_protocol",
    Cause.KV_INCOMPLETE: "only a part of each prompt arrives: compare block size, chunk size and "
    "prefix hash seed with prefill's",
    Cause.READ_LATE: "its pages were read after their lease had ended: such answers may be wrong; "
    "raise the lease, or give decode more room",
}

LOADS_ARE_COUNTED: Final = frozenset({"vllm-nixl", "vllm-kvt", "decode-first"})
"""Protocols whose connectors, all that we know, show a counter of loads from the start."""


def why_recomputed(counters: Counters, grew: Counters, protocol: str, expired: float) -> Cause:
    """
    `counters` are those of the engine's last page, `grew` what is new of them; `expired`: prompts
    that prefill engines of its protocol have lately kept for nobody.
    """
    if grew.transferred:
        return Cause.LEASES_EXPIRE if expired else Cause.KV_INCOMPLETE
    if counters.loads is None and protocol in LOADS_ARE_COUNTED:
        return Cause.NO_CONNECTOR
    if expired:
        return Cause.LEASES_EXPIRE
    return Cause.LOADS_FAIL if grew.loads_failed else Cause.KV_IGNORED
