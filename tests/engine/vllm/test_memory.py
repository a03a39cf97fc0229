from dataclasses import replace

import pytest

from pdgate.engine.vllm import memory
from tests.engine.vllm.tensors import BASE, LAYER_BYTES, Tensor, two_layers

LAYERS = two_layers()


def test_all_layers_are_one_stretch_of_pages() -> None:
    found = memory.of(LAYERS, "cpu-vec")

    layout = found.layout
    assert (layout.layers, layout.blocks, layout.kv_heads) == (2, 256, 2)
    assert (layout.block_tokens, layout.head_dim, layout.dtype) == (32, 32, "float32 cpu-vec")
    assert layout.page_bytes == 16384
    assert (found.address, found.length) == (BASE, 2 * LAYER_BYTES)
    assert found.layers == ("layers.0", "layers.1")


SECOND = LAYERS["layers.1"]


@pytest.mark.parametrize(
    "second",
    [
        replace(SECOND, address=SECOND.address + 64),
        replace(SECOND, storage=1),
        replace(SECOND, contiguous=False),
        replace(SECOND, dtype="torch.bfloat16"),
        replace(SECOND, shape=(256, 2, 16, 128)),
    ],
)
def test_layers_that_do_not_follow_one_another_are_refused(second: Tensor) -> None:
    with pytest.raises(ValueError, match=r"layers\.1"):
        memory.of({**LAYERS, "layers.1": second}, "")


@pytest.mark.parametrize("shape", [(2, 256, 32, 2, 32), (256, 2, 32, 33)])
def test_another_kind_of_cache_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not known"):
        memory.of({"layers.0": Tensor(BASE, shape)}, "")


def test_a_model_without_kv_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="no KV cache"):
        memory.of({}, "")
