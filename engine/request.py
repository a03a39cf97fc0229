"""Requests to the core and its answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pdgate.engine.constrained.grammar import Grammar


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next tokens are chosen, and when to end.

    Attributes:
        max_tokens: 0 reads the prompt and samples nothing.
        temperature: 0 always takes the likeliest token.
        top_k: 0 for all.
        seed: Equal seeds give equal answers; None draws one.
        stop: Texts that end the answer.
        logprobs: How many alternatives to report; None for no log-probabilities.
        prompt_logprobs: The same for the prompt's own tokens.
        grammar: What the answer has to be; None for anything.
    """

    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt, one answer.

    Attributes:
        id: The engine's own, unique while the request lives.
        wire_id: X-Request-Id as it came.
        params: The body's kv_transfer_params.
        index: Of this one among all prompts and choices of the HTTP request.
    """

    id: str
    wire_id: str
    prompt: tuple[int, ...]
    sampling: Sampling
    params: Mapping[str, Any] | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    index: int = 0


class Finish(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Logprob:
    """Log-probability of one token, and of the likeliest ones in its place, best first."""

    token: int
    logprob: float
    top: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request got no answer; `blame_client` tells a 400 from a 500, `over_kv` that a load failed."""

    message: str
    blame_client: bool = False
    over_kv: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """One step of an answer. The last one has `finish` or `refusal`.

    Attributes:
        text: What these tokens add; may lag behind them by an unfinished character.
        cached_tokens: Prompt tokens that were not computed for this request.
        stopped_by: The stop string or stop token id that ended it, if one did.
        kv_transfer_params: What the connector wants the client to know, at the end.
    """

    request_id: str
    tokens: Sequence[int] = ()
    text: str = ""
    logprobs: Sequence[Logprob] = ()
    prompt_logprobs: Sequence[Logprob | None] | None = None
    cached_tokens: int = 0
    finish: Finish | None = None
    stopped_by: str | int | None = None
    kv_transfer_params: Mapping[str, Any] | None = None
    refusal: Refusal | None = None

    @property
    def last(self) -> bool:
        return self.finish is not None or self.refusal is not None
