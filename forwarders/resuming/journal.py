"""Journal of what a client has of a stream, as far as another engine must know to go on.

Text may lag behind the tokens, by half a character for one. A client that has the token
without the text would lose the text, so events that bring tokens and no text wait for one
that does; if the stream breaks before it, they are forgotten and their tokens are
generated again.

Nor may the next engine begin within a character: vLLM 0.32.0, given half a one at the end of a
prompt, answers with the text of the whole prompt (its FastIncrementalDetokenizer; seen). A
token that came alone and with text ends with a character. Of several in one event this is not
known, so after such the next engine begins at the last token that is known to, `whole`.
"""

from array import array
from dataclasses import dataclass
from enum import Enum, auto

from pdgate.forwarders.resuming.chunk import ResumedChoice, ResumedChunk

MOST_TOKENS = 1 << 20
"""Of prompt and answer; four bytes each."""

GAVE_UP = ("abort", "error")
"""finish_reason of a request that the engine did not finish."""


class JournalVerdict(Enum):
    PASS = auto()
    HOLD = auto()
    BROKEN = auto()


@dataclass(frozen=True, slots=True)
class Head:
    """What all chunks of a stream have in common."""

    id: str
    object: str
    created: int
    model: str

    def as_json(self) -> dict[str, str | int]:
        return {"id": self.id, "object": self.object, "created": self.created, "model": self.model}


class StreamJournal:
    """
    Attributes:
        lost: Why no other engine can go on; "" if one can.
        head: None before the first chunk.
        prompt, tokens: Ids of the prompt, and of what has been said.
        role: The client has the role of the speaker.
        finish: The client has the reason why the answer ended.
        usage: And what it took in all.
        whole: How many of the tokens end with a character for certain.
        after: The text of the others.
        characters: Of the whole ones, as log-probabilities count them.
    """

    __slots__ = (
        "_counted",
        "_waiting",
        "after",
        "characters",
        "finish",
        "head",
        "lost",
        "prompt",
        "role",
        "tokens",
        "usage",
        "whole",
    )

    def __init__(self) -> None:
        self.lost = ""
        self.head: Head | None = None
        self.prompt: array[int] = array("I")
        self.tokens: array[int] = array("I")
        self.role = False
        self.finish = False
        self.usage = False
        self.whole = 0
        self.after: list[str] = []
        self.characters = 0
        self._counted = 0
        self._waiting: list[int] = []

    def take(self, chunk: ResumedChunk) -> JournalVerdict:
        """What is to become of this event. Raises OverflowError for ids that are none."""
        if chunk.error:
            return JournalVerdict.BROKEN
        if not chunk.choices:
            self.usage = self.usage or (self.finish and chunk.usage is not None)
            return self.behind
        choice = chunk.choices[0]
        if choice.finish_reason in GAVE_UP:
            return JournalVerdict.BROKEN
        if len(chunk.choices) > 1 or choice.index:
            self.lost = "several choices"
        elif choice.delta is not None and choice.delta.parsed:
            self.lost = "reasoning or tools, which the engine parses"
        else:
            self._note(chunk, choice)
        if self.lost:
            return JournalVerdict.PASS
        # Some engines write "" where others write null.
        self.finish = self.finish or bool(choice.finish_reason)
        if self._waiting and not choice.said and not self.finish:
            return JournalVerdict.HOLD
        self.settle()
        if choice.said:
            self._note_text(choice)
        if choice.delta is not None and choice.delta.role:
            self.role = True
        return JournalVerdict.PASS

    @property
    def behind(self) -> JournalVerdict:
        """What is to become of an event without tokens: it does not overtake those that wait."""
        return JournalVerdict.HOLD if self._waiting else JournalVerdict.PASS

    def settle(self) -> None:
        """The client gets what has been waiting."""
        self.tokens.extend(self._waiting)
        self._waiting.clear()
        if len(self.prompt) + len(self.tokens) > MOST_TOKENS:
            self.give_up("too many tokens")

    def forget(self) -> None:
        """The stream broke off before the text of what was waiting."""
        self._waiting.clear()

    def give_up(self, why: str) -> None:
        self.lost = why
        self.prompt, self.tokens = array("I"), array("I")
        self.after.clear()

    def _note(self, chunk: ResumedChunk, choice: ResumedChoice) -> None:
        if self.head is None:
            self.head = Head(chunk.id, chunk.object, chunk.created, chunk.model)
        prompt = chunk.prompt_token_ids or choice.prompt_token_ids
        if prompt and not self.prompt:
            self.prompt = array("I", prompt)
        if choice.token_ids:
            self._waiting.extend(choice.token_ids)
        elif choice.said and not choice.finish_reason:
            self.lost = "the engine returns no token ids"
        if not self.prompt and self._waiting:
            self.lost = "the engine returns no token ids of the prompt"
        if choice.logprobs and choice.delta is None:
            self._count(choice.logprobs)

    def _note_text(self, choice: ResumedChoice) -> None:
        if len(choice.token_ids or ()) == 1:
            self.whole = len(self.tokens)
            self.characters = self._counted
            self.after.clear()
        else:
            self.after.append(choice.said)

    def _count(self, logprobs: object) -> None:
        """As vLLM: after the last token's own text."""
        match logprobs:
            case {"tokens": [*_, str(last)], "text_offset": [*_, int(offset)]}:
                self._counted = offset + len(last)
