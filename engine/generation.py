"""One answer as it grows: from logits to text, until it ends."""

from collections.abc import Sequence
from dataclasses import replace

from pdgate.engine.constrained.grammar import Guide
from pdgate.engine.detokenize import Detokenizer, StopText
from pdgate.engine.model.tokenizer import Tokenizer
from pdgate.engine.model.weights import Floats
from pdgate.engine.request import Finish, Logprob, Output, Refusal, Request
from pdgate.engine.sampling import Sampler, logprob


class Generation:
    """
    Args:
        positions: The longest sequence that the model computes, prompt included.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer, positions: int) -> None:
        sampling = request.sampling
        self.request = request
        self.first_token: int | None = None
        self.count = 0
        self._room = min(sampling.max_tokens, positions - len(request.prompt))
        self._sampler = Sampler(sampling)
        self._text = Detokenizer(tokenizer, request.prompt)
        self._stop_text = StopText(sampling.stop, sampling.include_stop)
        self._guide = Guide(sampling.grammar) if sampling.grammar is not None else None
        # After the end of what the answer has to be, nothing else may come.
        ignored = sampling.ignore_eos and self._guide is None
        eos_ids = frozenset() if ignored else tokenizer.eos_ids
        self._ends = eos_ids | sampling.stop_token_ids
        self._prompt_logprobs: list[Logprob | None] = []
        if sampling.prompt_logprobs is not None:
            self._prompt_logprobs = [None] * len(request.prompt)

    def saw_prompt(self, start: int, logits: Floats) -> None:
        """`logits` [t, vocab] of the tokens at start..; each speaks of the token after it."""
        wanted = self.request.sampling.prompt_logprobs
        if wanted is None:
            return
        for position, row in enumerate(logits, start + 1):
            if position < len(self.request.prompt):
                token = self.request.prompt[position]
                self._prompt_logprobs[position] = logprob(row, token, wanted)

    def next(self, logits: Floats) -> Output:
        """Samples a token from `logits` [vocab]."""
        sampling = self.request.sampling
        allowed = None if self._guide is None else self._guide.mask
        if allowed is not None and not allowed.any():
            refusal = Refusal("the model has no token with which the answer could go on")
            return Output(self.request.id, refusal=refusal)
        token = self._sampler.choose(logits, self._ends if self._too_early else (), allowed)
        output = self._take(token)
        logprobs = []
        if sampling.logprobs is not None:
            logprobs.append(logprob(logits, token, sampling.logprobs))
        return replace(
            output,
            logprobs=logprobs,
            prompt_logprobs=self.prompt_logprobs if self.count == 1 else None,
        )

    def adopt(self, token: int) -> Output | None:
        """Begins with the token that another engine sampled; None if we must sample it.

        That is so where logits are asked for, which stayed with the other engine.
        """
        sampling = self.request.sampling
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            return None
        if token in self._ends and self._too_early:
            return None
        if self._guide is not None and not self._guide.mask[token]:
            return None
        self._sampler.skip()
        return self._take(token)

    @property
    def _too_early(self) -> bool:
        """To end; what has to end here is never too early."""
        if self.count >= self.request.sampling.min_tokens:
            return False
        return self._guide is None or self._guide.goes_on(without=self._ends)

    def _take(self, token: int) -> Output:
        if self.count == 0:
            self.first_token = token
        self.count += 1
        if self._guide is not None:
            self._guide.advance(token)
        output = self._end(token) if token in self._ends else self._go_on(token)
        return replace(output, tokens=(token,))

    @property
    def prompt_logprobs(self) -> Sequence[Logprob | None] | None:
        return self._prompt_logprobs or None

    def _end(self, token: int) -> Output:
        """An end token is no text, unless the client asked to see it."""
        sampling = self.request.sampling
        asked_for = token in sampling.stop_token_ids
        text = self._text.feed(token) if asked_for and sampling.include_stop else ""
        text, _ = self._stop_text.feed(text, check=False)
        return Output(
            self.request.id,
            text=text + self._stop_text.flush(),
            finish=Finish.STOP,
            stopped_by=token if asked_for else None,
        )

    def _go_on(self, token: int) -> Output:
        full = self.count >= self._room
        check = self.count >= self.request.sampling.min_tokens
        text, stop = self._stop_text.feed(self._text.feed(token), check)
        if stop is not None:
            return Output(self.request.id, text=text, finish=Finish.STOP, stopped_by=stop)
        if full:
            text += self._stop_text.flush()
            return Output(self.request.id, text=text, finish=Finish.LENGTH)
        return Output(self.request.id, text=text)
