"""Hooks that answer instead of raising, and what they log of it.

vLLM lets an exception of a connector end the engine, with all its requests (0.32.0,
measured for each hook that a request's fields can reach). It calls hooks hundreds of times a
second, some once per layer, and a bug in one of them breaks them all: the traceback is logged
once, then again each minute with a count.
"""

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

REPEAT_SECONDS: Final = 60.0

log = logging.getLogger(__name__)


class HookComplaints:
    """Thread-safe."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._said: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def about(self, what: str) -> None:
        """Log the error, from within `except`. `what` is one of a few: it is remembered."""
        now = self._now()
        with self._lock:
            said = self._said.get(what)
            if said is not None and now - said < REPEAT_SECONDS:
                self._left_out[what] = self._left_out.get(what, 0) + 1
                return
            self._said[what] = now
            left_out = self._left_out.pop(what, 0)
        since = f" (and {left_out} times since the last such line)" if left_out else ""
        log.exception("%s broke%s", what, since)


HOOKS: Final = HookComplaints()
"""Of this process, as there is one connector in it."""


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
