"""Whether a call that failed is tried again, and whether prefill is still wanted. Pure.

What an operator chooses for calls whose prefill engine fails, or that find none (`OnPrefillFailure`):

    retry_then_recompute   other prefill engines; when there is none, or for the last attempt, a
                           decode engine reads the prompt itself. Also when decode fails, which
                           does not say whether it was over prefill's KV
    retry                  other prefill engines only: decode engines are spared the prompts, and
                           calls get an error when no prefill engine is up
    recompute              a decode engine, at once
    fail                   the error, at once
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from pdgate.forwarders.attempt import Attempt
from pdgate.protocols.apis import Kind
from pdgate.protocols.call import Call
from pdgate.protocols.errors import (
    EngineBusy,
    EngineFailed,
    EngineRefused,
    GatewayError,
    KvExpired,
)


class OnPrefillFailure(StrEnum):
    RETRY_THEN_RECOMPUTE = "retry_then_recompute"
    RETRY = "retry"
    RECOMPUTE = "recompute"
    FAIL = "fail"


_RECOMPUTE = (OnPrefillFailure.RECOMPUTE, OnPrefillFailure.RETRY_THEN_RECOMPUTE)


@dataclass(frozen=True, slots=True)
class Retrying:
    """
    Attributes:
        max_attempts: For one call, the first one included.
        seconds: No attempt begins so long after the call came.
    """

    max_attempts: int = 3
    on_prefill_failure: OnPrefillFailure = OnPrefillFailure.RETRY_THEN_RECOMPUTE
    seconds: float = inf

    @property
    def decode_stands_in(self) -> bool:
        """Whether decode reads the prompt where no prefill engine can be had."""
        return self.on_prefill_failure in _RECOMPUTE

    def next(self, error: GatewayError, failed: Attempt) -> None:
        """Notes what the next attempt must know. Raises what the client gets if there is none."""
        record, tried = failed.record, failed.tried
        is_prefills = bool(error.at) and error.at == failed.prefill
        over = (
            record.committed is not None
            or record.attempts >= self.max_attempts
            or not error.worth_retrying
            or not (error.at or isinstance(error, KvExpired))
            or record.clock() - record.started >= self.seconds
            or (is_prefills and self.on_prefill_failure is OnPrefillFailure.FAIL)
            or not _may_be_repeated(failed.call, error)
        )
        if over:
            raise error
        tried.note(error, "" if is_prefills else failed.prefill)
        over_kv = bool(failed.prefill) and not is_prefills and _may_be_over_kv(error)
        if over_kv:
            tried.suspect(failed.prefill)
        now = is_prefills and self.on_prefill_failure is OnPrefillFailure.RECOMPUTE
        last = record.attempts + 1 == self.max_attempts and self.decode_stands_in
        tried.without_prefill = now or (last and (is_prefills or over_kv))


def _may_be_over_kv(error: GatewayError) -> bool:
    """Decode's own load aside: it may have failed, or waited, over the KV that it was to fetch."""
    return isinstance(error, EngineFailed) and not isinstance(error, EngineBusy | KvExpired)


def _may_be_repeated(call: Call, error: GatewayError) -> bool:
    """What a request does that we know nothing of, it may do twice."""
    if call.api is None or call.api.kind is not Kind.PASSES:
        return True
    return call.method == "GET" or isinstance(error, EngineRefused)
