"""vLLM's KV cache becomes memory that the mover process can map, or stays as it is."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pdgate.engine.vllm.kv_region import open_region, pages_of, place_of
from pdgate.transfer import registry
from pdgate.transfer.base import Backend
from pdgate.transfer.device.fake import FakeDevice
from pdgate.transfer.memory import address
from pdgate.transfer.plan.layout import LayoutOrder
from tests.engine.vllm.tensors import BASE, LAYER_BYTES, Tensor, rebase, two_layers
from tests.support.kv_devices import replace as replace_device

LAYERS = two_layers()


def test_all_layers_are_one_stretch_of_pages() -> None:
    found = pages_of(LAYERS, "cpu-vec")

    share = found.share
    assert (share.layers, share.blocks, share.kv_heads) == (2, 256, 2)
    assert (share.block_tokens, share.content, share.dtype) == (32, 64, "float32 cpu-vec")
    assert share.order is None
    assert (found.address, found.length) == (BASE, 2 * LAYER_BYTES)
    assert found.layers == ("layers.0", "layers.1")


SECOND = LAYERS["layers.1"]


@pytest.mark.parametrize(
    "second",
    [
        replace(SECOND, address=SECOND.address + 64),
        replace(SECOND, storage=1),
        replace(SECOND, strides=(4096, 64, 128, 1)),
        replace(SECOND, dtype="torch.bfloat16"),
        replace(SECOND, shape=(256, 2, 16, 128)),
    ],
)
def test_layers_that_do_not_follow_one_another_are_refused(second: Tensor) -> None:
    with pytest.raises(ValueError, match=r"layers\.1"):
        pages_of({**LAYERS, "layers.1": second}, "")


@pytest.mark.parametrize(
    ("strides", "order"),
    [((4096, 2048, 64, 1), LayoutOrder.HND), ((4096, 64, 128, 1), LayoutOrder.NHD)],
)
def test_the_strides_tell_the_order(strides: tuple[int, ...], order: LayoutOrder) -> None:
    tensors = {name: replace(one, strides=strides) for name, one in LAYERS.items()}

    assert pages_of(tensors, "").share.order is order


def test_a_latent_has_one_head() -> None:
    share = pages_of({"layers.0": Tensor(BASE, (256, 1, 32, 576))}, "").share

    assert (share.kv_heads, share.content, share.order) == (1, 576, LayoutOrder.HND)


@pytest.mark.parametrize(
    "strides",
    [
        pytest.param((8192, 2048, 64, 1), id="BLHNC: layers within a block"),
        pytest.param((2048, 524288, 64, 1), id="LHBNC: blocks within a head"),
        pytest.param((4160, 2048, 64, 1), id="padded pages"),
    ],
)
def test_pages_that_are_not_in_a_row_are_refused(strides: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="no pages in a row"):
        pages_of({"layers.0": Tensor(BASE, strides=strides)}, "")


@pytest.mark.parametrize("shape", [(2, 256, 32, 2, 32), (256, 32, 33)])
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


def test_memory_of_a_device_stays_where_it_is_and_is_registered_as_that() -> None:
    device = FakeDevice()
    replace_device(device)
    base = device.allocate(2 * LAYER_BYTES).address
    tensors = {
        "layers.0": Tensor(base, storage=base),
        "layers.1": Tensor(base + LAYER_BYTES, storage=base),
    }
    with closing(registry.load("cuda-ipc")) as backend:
        region, found = open_region(backend, tensors, tensors.values(), "", rebase, "fake:0")

        assert (region.place, region.descriptor.length) == ("fake:0", 2 * LAYER_BYTES)
        assert found.address == base == tensors["layers.0"].address
        assert found.share.order is LayoutOrder.HND


def test_a_device_that_is_neither_a_cpu_nor_nvidias_is_refused_by_name() -> None:
    def on(kind: str, index: int | None = None) -> SimpleNamespace:
        return SimpleNamespace(device=SimpleNamespace(type=kind, index=index))

    assert [place_of(on(*one)) for one in (("cpu",), ("cuda", 3), ("cuda",))] == [
        "host",
        "cuda:3",
        "cuda:0",
    ]
    other = on("xpu", 0)
    with pytest.raises(ValueError, match="CPUs and NVIDIA GPUs"):
        place_of(other)
