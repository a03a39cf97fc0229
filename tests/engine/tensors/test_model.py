"""The model on tensors is the model on arrays: the same source, so the same numbers but for the order of sums."""

import numpy as np
import pytest

from pdgate.engine.cache.tiers import weights_of
from pdgate.engine.model.llama import TokenSpan, WantedLogits
from pdgate.engine.model.load import load
from pdgate.engine.pooling import Pooler
from pdgate.engine.tensors import Tensors, own_pages
from tests.engine.tensors.on_tensors import KINDS, WHERE, heads, layout_of, tensors

PROMPT = [*range(40, 120)]


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_numpy(kind: str, tp: int) -> None:
    """Two sequences in a batch, in chunks, whose blocks are in no order."""
    found = []
    for on_tensors in (False, True):
        model = KINDS[kind](on_tensors=on_tensors)
        pages = own_pages(layout_of(model, tp), model.tensors)
        first = TokenSpan(PROMPT[:50], 0, [7, 3, 11, 2, 9, 1], WantedLogits.NONE)
        other = TokenSpan(PROMPT[:20], 0, [5, 4], WantedLogits.ALL)
        rest = TokenSpan(PROMPT[50:], 50, [7, 3, 11, 2, 9, 1])
        _, (all_of_other, _) = model.decoder.forward([first, other], pages)
        [(last, _)] = model.decoder.forward([rest], pages)
        found.append(np.concatenate([all_of_other, last]))
    arrays, of_tensors = found
    assert isinstance(of_tensors, np.ndarray)
    assert arrays.shape == of_tensors.shape == (21, heads(on_tensors=False).config.vocab_size)
    # Forbidden tokens are so in both.
    np.testing.assert_allclose(of_tensors, arrays, rtol=1e-3, atol=1e-3)


def test_vectors_of_texts_are_those_of_numpy() -> None:
    one, other = (Pooler(heads(on_tensors=each)).embed(PROMPT) for each in (False, True))
    np.testing.assert_allclose(other, one, atol=1e-4)


def test_pages_on_the_cpu_can_be_copied_to_a_tier() -> None:
    model = heads(on_tensors=True)
    if not tensors().on_host:
        pytest.skip("pages of a GPU go to no tier: the settings refuse it")
    pages = own_pages(layout_of(model), tensors())
    [view] = pages.views
    model.decoder.forward([TokenSpan(PROMPT, 0, range(6))], pages)
    assert any(view[: pages.layout.page_bytes])
    assert weights_of(model.root) == weights_of(heads(on_tensors=False).root)


def test_pages_for_which_there_is_no_room_are_one_sentence() -> None:
    with pytest.raises(MemoryError, match=f"{tensors().device} has no room for {1 << 50} bytes"):
        tensors().new_bytes(1 << 50)


def test_a_device_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(LookupError, match="PyTorch has no cuda:77 here: ") as refused:
        load(None, 64, Tensors("cuda:77"))
    assert "\n" not in str(refused.value)
    assert WHERE in ("cpu", tensors().device)
