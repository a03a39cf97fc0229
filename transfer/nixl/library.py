"""NIXL as we need it: found under any of its names, patient, and with errors of ours.

Left alone, NIXL's Python API makes the progress thread of every agent spin, one core each
(`agent_config.pthrDelay = 0`; nixl-cu12 1.5.1, nixl_cu12/_api.py, nixl_agent.__init__).
There is no option for it, so the configuration is caught on its way. Without the thread a
transfer stands still until both sides look, so doing without it is no cure.
"""

import importlib
import os
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from pdgate.protocols.extras import install
from pdgate.transfer.base import PeerLost, TransferError
from pdgate.transfer.external_mover.library import missing

PROGRESS_MICROSECONDS: Final = 1000
"""Between two looks of the progress thread: 0.03 of a core when idle (measured)."""

RDMA_DEVICES: Final = Path("/sys/class/infiniband")

# `nixl` picks the flavour that fits the CUDA it finds; the others stand alone.
_NAMES: Final = ("nixl", "nixl_cu13", "nixl_cu12")

_creating = threading.Lock()


def load() -> Any:
    """NIXL's `_api`. Raises LookupError."""
    # Its INFO lines go to standard output, which is the engine's.
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    if not any(RDMA_DEVICES.glob("*")):
        # The wheel brings RDMA libraries of its own, which load the system's drivers
        # (Debian: ibverbs-providers) and crash with them when the process ends.
        os.environ.setdefault("UCX_MODULES", "^ib,rdmacm")
    for name in _NAMES:
        try:
            importlib.import_module(name)
            return importlib.import_module(f"{name}._api")
        except ModuleNotFoundError as error:
            if error.name != name:
                raise missing("nixl", f"the package {error.name}", "pip install it") from None
        except ImportError as error:
            raise missing("nixl", f"a library ({error})", install("nixl")) from None
    raise missing("nixl", "the package nixl", install("nixl"))


def agent(
    api: Any, name: str, plugin: str, settings: Mapping[str, str], progress_microseconds: int
) -> Any:
    """With one plugin, NIXL's name for what moves the bytes. Raises OSError."""
    bindings = api.nixlBind
    strict = api.nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
    configuration = api.nixl_agent_config(backends=[], sync_mode=strict)
    with _creating:
        create = bindings.nixlAgent

        def patiently(name: str, config: Any) -> Any:
            config.pthrDelay = progress_microseconds
            return create(name, config)

        bindings.nixlAgent = patiently
        try:
            made = api.nixl_agent(name, configuration)
        finally:
            bindings.nixlAgent = create
    try:
        made.create_backend(plugin, dict(settings))
    except errors(api) as error:
        raise OSError(f"nixl did not start {plugin}: {error}") from None
    return made


def destroy(made: Any) -> None:
    """Now, and not when the last error that has seen it is forgotten.

    An agent that lives until the interpreter ends is destroyed after what it needs.
    """
    del made.agent


def errors(api: Any) -> tuple[type[Exception], ...]:
    """They have no common base."""
    found = vars(api.nixlBind).values()
    return tuple(
        one
        for one in found
        if isinstance(one, type)
        and issubclass(one, Exception)
        and one.__module__ == api.nixlBind.__name__
    )


class Translated:
    """A block whose NIXL errors become ours."""

    def __init__(self, what: str, known: tuple[type[Exception], ...]) -> None:
        self._what = what
        self._known = known

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if isinstance(error, self._known):
            # NIXL's own frames hold the handle, and by it the agent.
            traceback.clear_frames(at)
            ours = (
                PeerLost if type(error).__name__ == "nixlRemoteDisconnectError" else TransferError
            )
            raise ours(f"nixl, {self._what}: {error}") from None
