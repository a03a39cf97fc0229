"""Operator's choices of how calls cross the engines. Imports nothing that help would wait for."""

from enum import StrEnum

from pdgate.protocols.members import plain_members


@plain_members
class Mode(StrEnum):
    """Choice of decode: in a batch with prefill, or when prefill has answered."""

    BATCH = "batch"
    STAGED = "staged"


class OnPrefillFailure(StrEnum):
    """What becomes of calls whose prefill engine fails, or that find none.

    retry_then_recompute   other prefill engines; when there is none, or for the last attempt, a
                           decode engine reads the prompt itself. Also when decode fails, which
                           does not say whether it was over prefill's KV
    retry                  other prefill engines only: decode engines are spared the prompts, and
                           calls get an error when no prefill engine is up
    recompute              a decode engine, at once
    fail                   the error, at once
    """

    RETRY_THEN_RECOMPUTE = "retry_then_recompute"
    RETRY = "retry"
    RECOMPUTE = "recompute"
    FAIL = "fail"
