"""vLLM's KV cache becomes memory that the mover process can map, or stays as it is."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from pdgate.engine.vllm.kv_region import open_region, pages_of
from pdgate.transfer import registry
from pdgate.transfer.base import Backend
from pdgate.transfer.memory import address
from tests.engine.vllm.tensors import BASE, LAYER_BYTES, Tensor, rebase, two_layers

LAYERS = two_layers()


def test_all_layers_are_one_stretch_of_pages() -> None:
    found = pages_of(LAYERS, "cpu-vec")

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
        pages_of({**LAYERS, "layers.1": second}, "")


@pytest.mark.parametrize("shape", [(2, 256, 32, 2, 32), (256, 2, 32, 33)])
def test_another_kind_of_cache_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="not known"):
        pages_of({"layers.0": Tensor(BASE, shape)}, "")


def test_a_model_without_kv_cache_is_refused() -> None:
    with pytest.raises(ValueError, match="no KV cache"):
        pages_of({}, "")


@pytest.fixture(params=["tcp", "shm"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    with closing(registry.load(request.param)) as backend:
        yield backend


def test_all_tensors_move_into_shared_memory(backend: Backend) -> None:
    """A layer may hold a view of its own; what it wrote elsewhere would reach nobody."""
    tensors = two_layers()
    view = Tensor(BASE + LAYER_BYTES, shape=(512, 2, 16, 64))

    region, found = open_region(backend, tensors, [tensors["layers.0"], view], "", rebase)

    base = address(region.memory)
    assert region.share() is not None
    assert (found.address, found.length) == (base, 2 * LAYER_BYTES)
    assert tensors["layers.0"].address == base
    assert tensors["layers.1"].address == view.address == base + LAYER_BYTES


@pytest.mark.parametrize(
    "bound", [Tensor(BASE, storage=BASE - 64), [Tensor(BASE)]], ids=["other storage", "a list"]
)
def test_what_cannot_all_be_moved_stays(
    bound: object, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = two_layers()

    region, found = open_region(backend, tensors, [bound], "", rebase)

    assert region.share() is None
    assert tensors == two_layers()
    assert (found.address, found.length) == (BASE, 2 * LAYER_BYTES)
    assert "stays private memory" in caplog.text


def test_it_stays_where_that_is_wanted(backend: Backend) -> None:
    tensors = two_layers()

    region, _ = open_region(backend, tensors, tensors.values(), "", None)

    assert region.share() is None
    assert tensors == two_layers()
