"""Arrays that the model computes with: NumPy's, or PyTorch's tensors, by one source.

    module(x)          numpy or torch, whichever x is of
    beside(given, x)   what NumPy made, where x is
    host(x)            NumPy's, of either

Operators, indexing, `reshape` and `swapaxes` are the arrays' own. Of a module only those functions are used that both have
by one name, with the same arguments: mean, sqrt, tanh, exp, amax, sum, stack, concatenate. Nothing here imports
PyTorch: who has a tensor has it. To the checker of types a tensor is one of NumPy's arrays.
"""

import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pdgate.engine.model.weights import Floats

_TORCH: Final = "torch"


def module(x: Floats) -> Any:
    return np if isinstance(x, np.ndarray) else sys.modules[_TORCH]


def split(x: Floats, at: int | Sequence[int], axis: int = 0) -> Sequence[Floats]:
    """Split into so many equal parts, or before each of these places."""
    if isinstance(x, np.ndarray):
        return np.split(x, at, axis)
    parts: Sequence[Floats] = module(x).tensor_split(x, at, axis)
    return parts


def beside(given: NDArray[Any], x: Floats) -> Any:
    if isinstance(x, np.ndarray):
        return given
    return module(x).from_numpy(given).to(x.device)


def host(x: Any) -> Floats:
    """Waits for what is still to be computed."""
    if isinstance(x, np.ndarray):
        return x
    found: Floats = x.cpu().numpy()
    return found


def floats(memory: Any, count: int) -> Floats:
    """The first `count` numbers in these bytes, which stay where they are: a memoryview, or a tensor of bytes."""
    if isinstance(memory, memoryview):
        return np.frombuffer(memory, np.float32, count=count)
    found: Floats = memory[: 4 * count].view(sys.modules[_TORCH].float32)
    return found


def view(memory: Any) -> memoryview:
    """The same bytes as a memoryview, of the host's memory only."""
    return memory if isinstance(memory, memoryview) else memoryview(memory.numpy())
