"""API keys: made at random, kept as their hash.

A key has 256 random bits, so one SHA-256 is enough: there is nothing to guess, and no need to
slow a guesser down. Looking a hash up in a dictionary leaks by its timing at most how hashes of
wrong keys compare, which is of no use without a preimage.
"""

import re
import secrets
from dataclasses import dataclass
from hashlib import sha256

from pdgate.gateway.security.token_limits import NO_TOKEN_LIMITS, TokenLimits
from pdgate.protocols.priority import ORDINARY

PREFIX = "pdg-"
"""Lets scanners for leaked secrets recognise ours."""

KEY_BYTES = 32

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Of a key: what can stand in a label and in a log without quotes."""


@dataclass(frozen=True, slots=True)
class ApiKey:
    """
    Attributes:
        name: Shown in records and metrics; no secret.
        sha256: Of the whole key, in hexadecimal.
        models: Those that it may ask; empty for all.
        max_calls: At the same time; None for any number.
        calls_per_minute: None for any number.
        priority: Of its calls while they wait, and the most urgent that they may say: 0 to 7.
        tokens: How many its calls may take.
        rule: Of signed tokens, by which it is held to this; empty for a key, and for the rule of all tokens.
    """

    name: str
    sha256: str
    models: frozenset[str] = frozenset()
    max_calls: int | None = None
    calls_per_minute: int | None = None
    priority: int = ORDINARY
    tokens: TokenLimits = NO_TOKEN_LIMITS
    rule: str = ""

    @property
    def state_id(self) -> str:
        """A tenant has a state for each rule that its tokens are held to; names have no spaces."""
        return f"{self.name} {self.rule}" if self.rule else self.name


def is_name(text: str) -> bool:
    return re.fullmatch(NAME, text) is not None


def new_key() -> str:
    """The only time that it is shown."""
    return PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_of(key: bytes) -> str:
    return sha256(key).hexdigest()
