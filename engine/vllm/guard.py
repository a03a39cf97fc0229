"""A hook that answers instead of raising.

vLLM lets an exception of a connector end the engine, with all its requests (0.32.0,
measured for each hook that a request's fields can reach).
"""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from pdgate.engine.vllm.complaints import HOOKS

P = ParamSpec("P")
R = TypeVar("R")


def guarded(otherwise: Any) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Answers `otherwise` (a constant) where the hook would raise."""

    def decorate(hook: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(hook)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return hook(*args, **kwargs)
            # Whatever it is: the other requests have done nothing to deserve it.
            except Exception:  # noqa: BLE001
                HOOKS.about(hook.__name__)
                found: R = otherwise
                return found

        return call

    return decorate
