from hypothesis import given
from hypothesis import strategies as st

from pdgate.engine.detokenize import HALF, Detokenizer, StopText
from pdgate.engine.model import builtin

TOKENIZER = builtin.tokenizer()


def pieces(tokens: list[int], prompt: str = "p") -> list[str]:
    made = Detokenizer(TOKENIZER, TOKENIZER.encode(prompt))
    return [made.feed(token) for token in tokens]


@given(st.text(), st.text(st.characters(exclude_characters=HALF)))
def test_pieces_join_to_the_whole_text(prompt: str, text: str) -> None:
    clean = text.encode(errors="replace").decode()

    assert "".join(pieces(list(clean.encode()), prompt)) == clean


@given(st.lists(st.integers(0, 255)))
def test_any_bytes_read_as_they_do_at_once(tokens: list[int]) -> None:
    """Also those that are no UTF-8; only at the end some may still wait for their rest."""
    whole, said = bytes(tokens).decode(errors="replace"), "".join(pieces(tokens))

    assert whole.startswith(said)
    assert set(whole[len(said) :]) <= {HALF}


def test_half_a_character_waits_for_its_rest() -> None:
    assert pieces(list("a€b".encode())) == ["a", "", "", "€", "b"]


def test_what_is_no_character_does_not_wait_for_ever() -> None:
    assert any(pieces([0x80] * 20))


def test_a_stop_string_over_several_pieces_is_cut_off() -> None:
    stops = StopText(["END"], include=False)

    assert stops.feed("one E") == ("one ", None)
    assert stops.feed("N") == ("", None)
    assert stops.feed("D two") == ("", "END")


def test_what_only_began_like_a_stop_string_comes_out() -> None:
    stops = StopText(["END"], include=False)
    stops.feed("E")

    assert stops.feed("at") == ("Eat", None)


def test_the_stop_string_can_be_included() -> None:
    assert StopText(["b"], include=True).feed("abc") == ("ab", "b")


@given(st.lists(st.text("ab", max_size=3)), st.lists(st.text("ab", min_size=1, max_size=3)))
def test_a_text_ends_before_its_first_stop_string(texts: list[str], stops: list[str]) -> None:
    made = StopText(stops, include=False)
    out, hit = "", None
    for text in texts:
        piece, hit = made.feed(text)
        out += piece
        if hit is not None:
            break
    else:
        out += made.flush()
    whole = "".join(texts)
    firsts = [whole.find(stop) for stop in stops if stop in whole]

    if hit is None:
        assert not firsts
        assert out == whole
    else:
        assert whole.startswith(out + hit)
        assert not any(stop in out for stop in stops)
