"""The bytes that each token adds to an answer.

Found by decoding each token after another one, so that what a tokenizer does at the beginning
of a text (SentencePiece drops a space there) does not count.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pdgate.engine.model.tokenizer import Tokenizer

_BEFORE = "a"


class Vocabulary:
    """
    Attributes:
        size: Ids are below it.
        ends: Ids that end an answer.
        by_first_byte: Of the tokens that are whole characters: (id, bytes), by their first.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self.size = size
        self.ends = tokenizer.eos_ids
        found: defaultdict[int, list[tuple[int, bytes]]] = defaultdict(list)
        before = tokenizer.encode(_BEFORE, special=False)
        known = tokenizer.decode(before)
        for token in range(size):
            text = tokenizer.decode([*before, token])
            # A special token reads as nothing, and half a character as U+FFFD.
            added = text.removeprefix(known)
            if len(text) > len(known) and "�" not in added:
                found[added.encode()[0]].append((token, added.encode()))
        self.by_first_byte: Mapping[int, Sequence[tuple[int, bytes]]] = found
        self._bytes = {token: value for pairs in found.values() for token, value in pairs}

    def bytes_of(self, token: int) -> bytes | None:
        """Return a token's bytes; None if it is no text by itself."""
        return self._bytes.get(token)
