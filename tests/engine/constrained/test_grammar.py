"""Tokens that may come next, of tokenizers whose tokens are bytes and whose are more."""

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from pdgate.engine.constrained import schema
from pdgate.engine.constrained.automaton import Expression, Literal, Repeat
from pdgate.engine.constrained.grammar import MOST_GRAMMARS, Grammar, Grammars, Guide
from pdgate.engine.constrained.vocabulary import Vocabulary
from pdgate.engine.generation import Generation
from pdgate.engine.model.tokenizer import Tokenizer
from pdgate.engine.request import Finish, Request, Sampling
from tests.support.engine_cores import tiny

WORDS = ["a", "b", "ab", "abb", "Ġ", "Ġa", "</s>"]


def words() -> Tokenizer:
    """Byte level, with tokens of several bytes."""
    ids = {word: index for index, word in enumerate(WORDS)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[("a", "b"), ("ab", "b")]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["</s>"])
    return Tokenizer(inner, frozenset({6}), {}, None)


def allowed(guide: Guide) -> list[str]:
    return [WORDS[token] for token in np.flatnonzero(guide.mask)]


def test_a_token_may_come_if_all_its_bytes_may() -> None:
    grammar = Grammar(Literal(b"abb a"), Vocabulary(words(), len(WORDS)))
    guide = Guide(grammar)

    assert allowed(guide) == ["a", "ab", "abb"]
    guide.advance(WORDS.index("ab"))
    assert allowed(guide) == ["b"]
    guide.advance(WORDS.index("b"))
    assert allowed(guide) == ["Ġ", "Ġa"]
    guide.advance(WORDS.index("Ġa"))
    assert allowed(guide) == ["</s>"]


def test_the_end_may_come_only_where_the_text_may_end() -> None:
    grammar = Grammar(Repeat(Literal(b"a"), 1, 2), Vocabulary(words(), len(WORDS)))
    guide = Guide(grammar)

    assert allowed(guide) == ["a"]
    guide.advance(WORDS.index("a"))
    assert allowed(guide) == ["a", "</s>"]
    assert guide.goes_on(without=[6])


def generation(expression: Expression, **sampling: object) -> Generation:
    model = tiny()
    vocabulary = Vocabulary(model.tokenizer, model.config.vocab_size)
    grammar = Grammar(expression, vocabulary)
    asked = Sampling(max_tokens=50, grammar=grammar, **sampling)  # type: ignore[arg-type]
    return Generation(Request("r", "r", (256,), asked), model.tokenizer, model.positions)


def test_an_answer_ends_where_nothing_more_may_come() -> None:
    """Also if the client wants no end, or a longer answer."""
    answer = generation(Literal(b"yes"), temperature=0, ignore_eos=True, min_tokens=40)
    logits = np.zeros(tiny().config.vocab_size, np.float32)
    outputs = [answer.next(logits)]
    while not outputs[-1].last:
        outputs.append(answer.next(logits))

    assert "".join(output.text for output in outputs) == "yes"
    assert outputs[-1].finish is Finish.STOP
    assert len(outputs) == 4


def test_a_token_of_another_engine_is_followed_or_sampled_anew() -> None:
    answer = generation(Literal(b"yes"), temperature=0)
    logits = np.zeros(tiny().config.vocab_size, np.float32)

    assert answer.adopt(ord("n")) is None
    begun = answer.adopt(ord("y"))

    assert begun is not None
    assert begun.text == "y"
    assert answer.next(logits).text == "e"


def test_a_model_without_the_tokens_says_so() -> None:
    model = tiny()
    grammar = Grammar(Literal(b"xyz"), Vocabulary(words(), len(WORDS)))
    asked = Sampling(grammar=grammar)
    answer = Generation(Request("r", "r", (1,), asked), words(), model.positions)

    output = answer.next(np.zeros(len(WORDS), np.float32))

    assert output.refusal is not None
    assert not output.refusal.blame_client


def test_grammars_are_kept_and_not_for_ever() -> None:
    kept, tokenizer = Grammars(), words()
    made = []

    def get(key: str) -> Grammar:
        def build() -> Expression:
            made.append(key)
            return schema.exactly(key)

        return kept.get(key, tokenizer, len(WORDS), build)

    first = get("0")
    assert get("0") is first
    for number in range(1, MOST_GRAMMARS + 1):
        get(str(number))
    assert made == [str(number) for number in range(MOST_GRAMMARS + 1)]
    get("0")
    assert made[-1] == "0"
