"""Safetensors files as float32 arrays.

    u64 little endian   length of the header
    JSON header         name -> {"dtype", "shape", "data_offsets": [begin, end]}
    bytes               offsets count from here

Read without the safetensors package, whose NumPy loader has no bfloat16.
Source: the safetensors README, section "Format".
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]

INDEX: Final = "model.safetensors.index.json"
SINGLE: Final = "model.safetensors"
DTYPES: Final = {"F32": np.float32, "F16": np.float16, "F64": np.float64}


def load_folder(folder: Path) -> Weights:
    """All tensors of a model, whether it is one file or several."""
    index = folder / INDEX
    if not index.exists():
        return load_file(folder / SINGLE)
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    return {name: array for shard in shards for name, array in load_file(folder / shard).items()}


def load_file(path: Path) -> Weights:
    data = np.memmap(path, dtype=np.uint8, mode="r")
    header_bytes = int.from_bytes(data[:8].tobytes(), "little")
    header = json.loads(data[8 : 8 + header_bytes].tobytes())
    body = data[8 + header_bytes :]
    return {name: _array(body, entry) for name, entry in header.items() if name != "__metadata__"}


def _array(body: NDArray[np.uint8], entry: Mapping[str, Any]) -> Floats:
    begin, end = entry["data_offsets"]
    raw = body[begin:end].tobytes()
    if entry["dtype"] == "BF16":
        # A bfloat16 is the upper half of a float32.
        wide = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(entry["shape"])
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"cannot read tensors of type {entry['dtype']}")
    found: NDArray[Any] = np.frombuffer(raw, DTYPES[entry["dtype"]])
    return found.astype(np.float32).reshape(entry["shape"])
