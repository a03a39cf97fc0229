"""A model by its folder, or the built-in one."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pdgate.engine.model import builtin, tokenizer, weights
from pdgate.engine.model.config import ModelConfig, from_hugging_face, is_built_in
from pdgate.engine.model.llama import Llama
from pdgate.engine.model.tokenizer import Tokenizer
from pdgate.engine.tensors import Tensors, putting

SEEDED: Final = "?seed="


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """
    Attributes:
        root: Folder of the model, or the name of the built-in one.
        positions: The longest sequence, prompt and answer together, in tokens.
        tensors: Where it is computed; None for NumPy.
    """

    root: str
    decoder: Llama
    tokenizer: Tokenizer
    positions: int
    tensors: Tensors | None = None

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config


def load(path: str | None, max_positions: int, tensors: Tensors | None = None) -> LoadedModel:
    """Raises OSError or ValueError if the folder holds no model that this engine computes."""
    if is_built_in(path):
        name = path or builtin.NAME
        positions = min(max_positions, builtin.CONFIG.max_positions)
        decoder = Llama(
            builtin.CONFIG, builtin.weights(name), positions, builtin.bias(), putting(tensors)
        )
        return LoadedModel(name, decoder, builtin.tokenizer(), positions, tensors)
    assert path is not None
    folder, config = Path(path), config_of(path)
    positions = min(max_positions, config.max_positions)
    decoder = Llama(config, weights.load_folder(folder), positions, put=putting(tensors))
    return LoadedModel(path, decoder, tokenizer.load_folder(folder), positions, tensors)


def with_weights(model: LoadedModel, path: str) -> LoadedModel:
    """The model with those of `path`: a folder, or pdgate-tiny?seed=NUMBER for the built-in one of another seed.

    Raises OSError or ValueError if they are not of such a model.
    """
    name, _, seed = path.partition(SEEDED)
    if name == "" or is_built_in(name):
        found: weights.Weights = builtin.weights(
            name or builtin.NAME, int(seed) if seed else builtin.SEED
        )
        config, bias = builtin.CONFIG, builtin.bias()
    else:
        config, found, bias = config_of(path), weights.load_folder(Path(path)), None
    if config != model.config:
        raise ValueError(f"{path!r} is a model of another shape")
    decoder = Llama(config, found, model.positions, bias, putting(model.tensors))
    return replace(model, decoder=decoder)


def config_of(path: str | None) -> ModelConfig:
    """Config as `load` has it, without the weights."""
    if path is None or is_built_in(path):
        return builtin.CONFIG
    return from_hugging_face(json.loads((Path(path) / "config.json").read_text()))
