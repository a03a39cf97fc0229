"""Checks, in the order in which they are run: what breaks most, first; what harms engines, last."""

from typing import Final

from pdgate.lab.conformance.check import Check
from pdgate.lab.conformance.checks.answers import (
    ENGINE_FIELDS,
    LOGPROBS,
    PROMPT_LOGPROBS,
    SAME_TOKENS,
    SEEDS,
    STOP_STRINGS,
    STREAMS,
    TOOLS,
    USAGE,
)
from pdgate.lab.conformance.checks.crossing import (
    ORDER_OF_LEGS,
    PREFILL_READS_ONLY,
    REQUEST_IDS,
    VERIFIED_TRANSFER,
)
from pdgate.lab.conformance.checks.failing import (
    KILLED_ENGINES,
    LATE_DECODE,
)
from pdgate.lab.conformance.checks.leaving import CANCEL, CANCEL_EARLY, RELEASE
from pdgate.lab.conformance.checks.refusing import BAD_INPUT, FOREIGN_PEERS
from pdgate.lab.conformance.checks.several import (
    LISTS_OF_PROMPTS,
    SEVERAL_CHOICES,
    SHORT_ANSWERS,
    TOKEN_IDS,
)

CHECKS: Final[tuple[Check, ...]] = (
    SAME_TOKENS,
    STREAMS,
    ORDER_OF_LEGS,
    VERIFIED_TRANSFER,
    PREFILL_READS_ONLY,
    SEEDS,
    STOP_STRINGS,
    LOGPROBS,
    PROMPT_LOGPROBS,
    TOOLS,
    USAGE,
    ENGINE_FIELDS,
    SEVERAL_CHOICES,
    LISTS_OF_PROMPTS,
    TOKEN_IDS,
    SHORT_ANSWERS,
    REQUEST_IDS,
    BAD_INPUT,
    FOREIGN_PEERS,
    RELEASE,
    CANCEL,
    CANCEL_EARLY,
    KILLED_ENGINES,
    LATE_DECODE,
)
