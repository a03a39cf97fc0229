"""One answer as it grows: from logits to text, until it ends."""

from collections.abc import Sequence
from dataclasses import replace

from pdgate.engine.choosing import TokenChoice
from pdgate.engine.detokenize import Detokenizer, StopText
from pdgate.engine.model.llama import Llama
from pdgate.engine.model.tokenizer import Tokenizer
from pdgate.engine.model.weights import Floats
from pdgate.engine.request import Finish, Logprob, Output, Refusal, Request
from pdgate.engine.sampling import logprob
from pdgate.engine.speculation import TokenState, guesses


class Generation:
    """
    Attributes:
        state: Of the last token that was computed, where tokens are guessed from it.

    Args:
        positions: The longest sequence that the model computes, prompt included.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer, positions: int) -> None:
        sampling = request.sampling
        self.request = request
        self.first_token: int | None = None
        self.state: TokenState | None = None
        self._room = min(sampling.max_tokens, positions - len(request.prompt))
        self._text = Detokenizer(tokenizer, request.prompt)
        self._stop_text = StopText(sampling.stop, sampling.include_stop)
        self._choice = TokenChoice(sampling, tokenizer.eos_ids)
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
        token = self._choice.choose(logits)
        if token is None:
            refusal = Refusal("the model has no token with which the answer could go on")
            return Output(self.request.id, refusal=refusal)
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
        """Begin with the token that another engine sampled; None if this one must sample it.

        That is so where logits are asked for, which stayed with the other engine.
        """
        sampling = self.request.sampling
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            return None
        return self._take(token) if self._choice.adopts(token) else None

    @property
    def count(self) -> int:
        """Tokens of the answer."""
        return self._choice.count

    def guesses(self, decoder: Llama, tokens: Sequence[int], most: int) -> list[int]:
        """Tokens that may follow `tokens`, the prompt and what came of the answer: no more than the answer has
        room for behind the one that is due. Empty without the state of the last but one.
        """
        most = min(most, self._room - self.count - 1)
        if most < 1 or self.state is None or self.state.tokens != len(tokens) - 1:
            return []
        return guesses(decoder, self.state, tokens, self._choice.ahead(), most)

    def _take(self, token: int) -> Output:
        if self.count == 0:
            self.first_token = token
        self._choice.take(token)
        output = self._end(token) if token in self._choice.ends else self._go_on(token)
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
