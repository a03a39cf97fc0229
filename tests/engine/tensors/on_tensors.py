"""Models on PyTorch's tensors, beside the same ones on NumPy's arrays: on the CPU, or on the GPU that on_gpu.sh names."""

from collections.abc import Callable
from functools import lru_cache
from typing import Final

from pdgate.engine.layout import Layout
from pdgate.engine.model.load import LoadedModel, load
from pdgate.engine.tensors import Tensors
from tests.support.engine_cores import tiny
from tests.support.kv_devices import DEVICE
from tests.support.latent_models import latent_model

WHERE: Final = DEVICE if DEVICE.startswith("cuda") else "cpu"
BLOCKS: Final = 32


@lru_cache
def tensors() -> Tensors:
    return Tensors(WHERE)


@lru_cache
def heads(*, on_tensors: bool) -> LoadedModel:
    return load(None, 2048, tensors()) if on_tensors else tiny()


@lru_cache
def latent(*, on_tensors: bool) -> LoadedModel:
    return latent_model(tensors() if on_tensors else None)


KINDS: Final[dict[str, Callable[..., LoadedModel]]] = {"heads": heads, "latent": latent}


def layout_of(model: LoadedModel, tp: int = 1) -> Layout:
    config = model.config
    return Layout(
        config.layers,
        BLOCKS,
        config.kv_heads,
        16,
        config.head_dim,
        tp=tp,
        planes=config.kv_planes,
    )
