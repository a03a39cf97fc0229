"""A model by its folder, or the built-in one."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pdgate.engine.model import builtin, tokenizer, weights
from pdgate.engine.model.config import ModelConfig, from_hugging_face
from pdgate.engine.model.llama import Llama
from pdgate.engine.model.tokenizer import Tokenizer

SEEDED: Final = "?seed="


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """
    Attributes:
        root: Folder of the model, or the name of the built-in one.
        positions: The longest sequence, prompt and answer together, in tokens.
    """

    root: str
    decoder: Llama
    tokenizer: Tokenizer
    positions: int

    @property
    def config(self) -> ModelConfig:
        return self.decoder.config


def load(path: str | None, max_positions: int) -> LoadedModel:
    """Raises OSError or ValueError if the folder holds no model that this engine computes."""
    if path is None:
        positions = min(max_positions, builtin.CONFIG.max_positions)
        decoder = Llama(builtin.CONFIG, builtin.weights(), positions, builtin.bias())
        return LoadedModel(builtin.NAME, decoder, builtin.tokenizer(), positions)
    folder, config = Path(path), config_of(path)
    positions = min(max_positions, config.max_positions)
    decoder = Llama(config, weights.load_folder(folder), positions)
    return LoadedModel(path, decoder, tokenizer.load_folder(folder), positions)


def with_weights(model: LoadedModel, path: str) -> LoadedModel:
    """The model with those of `path`: a folder, or pdgate-tiny?seed=NUMBER for the built-in one of another seed.

    Raises OSError or ValueError if they are not of such a model.
    """
    name, _, seed = path.partition(SEEDED)
    if name in ("", builtin.NAME):
        found: weights.Weights = builtin.weights(int(seed) if seed else builtin.SEED)
        config, bias = builtin.CONFIG, builtin.bias()
    else:
        config, found, bias = config_of(path), weights.load_folder(Path(path)), None
    if config != model.config:
        raise ValueError(f"{path!r} is a model of another shape")
    return replace(model, decoder=Llama(config, found, model.positions, bias))


def config_of(path: str | None) -> ModelConfig:
    """As `load`, without the weights."""
    if path is None:
        return builtin.CONFIG
    return from_hugging_face(json.loads((Path(path) / "config.json").read_text()))
