"""What each function did in a run: how often it was entered, and how many bytecodes it ran.

Slow, and exact: both are the same in every run, so two of them can be compared line by line.
It says where instructions went; what C code does within one bytecode it does not see.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

HARNESS = ("benchmarks.guard", "__main__")


class Trace:
    """
    Attributes:
        entered, bytecodes: By function; a coroutine is entered whenever it goes on.
    """

    def __init__(self) -> None:
        self.entered: Counter[str] = Counter()
        self.bytecodes: Counter[str] = Counter()

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(HARNESS):
            return None
        name = f"{module}.{frame.f_code.co_qualname}"
        self.entered[name] += 1
        frame.f_trace_lines, frame.f_trace_opcodes = False, True

        def step(_: FrameType, event: str, __: Any) -> Any:
            if event == "opcode":
                self.bytecodes[name] += 1
            return step

        return step

    @contextmanager
    def on(self) -> Iterator[None]:
        """Counts inside the block, in this thread."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
