"""`python -m pdgate serve` and `engine`, where a test starts them: forks of a process that has imported the command
(preloaded.py), by whichever of Python's ways the test starts them.

    forked.install()
    subprocess.Popen([sys.executable, "-m", "pdgate", "engine", ...])      # and asyncio's, and all others

All else is started as it is without: other commands and programs, other flags of Python, a variable that is read when
something is imported, and more than standard streams, a folder, an environment and a session of its own.
"""

import atexit
import ctypes
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.preloaded import LONGEST_REQUEST

MODULES: Final[Mapping[str, Sequence[str]]] = {
    "serve": ("pdgate.gateway.cli.serve", "pdgate.gateway.server", "uvloop", "pydantic.v1"),
    "engine": (
        "pdgate.engine.cli",
        "pdgate.engine.server",
        "pydantic.main",
        "uvicorn.lifespan.on",
        "uvicorn.protocols.http.httptools_impl",
        "uvicorn.protocols.websockets.wsproto_impl",
        "uvloop",
    ),
}
"""Command -> what it imports, itself or by others, until it is ready."""

ONE_THREAD: Final = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)
"""NumPy reads them as it is imported; `pdgate engine` sets them before, to what `--threads` says, whatever they were:
in this process, where a test has called the command."""

READ_AT_IMPORT: Final = ("PYTHON", "LD_", "MALLOC_")
"""How variables begin that have to be the same in what is forked from."""

UNBUFFERED: Final = {"PYTHONUNBUFFERED": "1"}

PIPES: Final = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
UNUSUAL: Final = ("preexec_fn", "pass_fds", "shell")
OTHERS: Final = ("gid", "gids", "uid", "umask", "process_group")
"""Arguments of Popen: descriptors to close here, and what a fork is not asked for."""

ROOT: Final = Path(__file__).parents[2]

PR_SET_CHILD_SUBREAPER: Final = 36
"""Who has set it is the parent of orphans among its descendants (linux/prctl.h)."""

_prctl: Any = ctypes.CDLL(None, use_errno=True).prctl


class Preloaded:
    """A process that has imported a command of pdgate. It ends with this one."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.preloaded", str(theirs.fileno()), *modules],
                cwd=ROOT,
                env={**os.environ, **_environment, **ONE_THREAD, **UNBUFFERED},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, request: Mapping[str, Any], streams: Sequence[int]) -> int | None:
        """The pid of a child of ours; None where what was imported is not what it would import."""
        message = json.dumps(request).encode(errors="surrogateescape")
        if _read_at_import(request["env"]) != _environment or len(message) > LONGEST_REQUEST:
            return None
        # Only now, so that we are given no other orphans, for which nobody would wait.
        _prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [message], streams)
            pid = self._socket.recv(64)
        finally:
            _prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        assert pid, f"{self.process.args!r} has ended"
        return int(pid)

    def close(self) -> None:
        self._socket.close()
        self.process.wait()


_environment: dict[str, str] = {}
_preloaded: dict[str, Preloaded] = {}
_lock: Final = threading.Lock()
_execute_child: Any = vars(subprocess.Popen)["_execute_child"]
_ARGUMENTS: Final = inspect.signature(_execute_child)


def install() -> None:
    """From now on, in this process, whose environment is what most of its tests leave as it is."""
    _environment.update(_read_at_import(os.environ))
    subprocess.Popen._execute_child = _started  # type: ignore[attr-defined]


def _started(popen: Any, *arguments: Any) -> None:
    """In place of a method of Popen that has neither a name nor a promise; its arguments go by theirs."""
    given = _ARGUMENTS.bind(popen, *arguments).arguments
    pid = _forked(given)
    if pid is None:
        _execute_child(popen, *arguments)
        return
    popen.pid = pid
    popen._child_created = True
    popen._close_pipe_fds(*(given[name] for name in PIPES))


def _forked(given: Mapping[str, Any]) -> int | None:
    if isinstance(given["args"], (str, bytes, os.PathLike)):
        return None
    if any(given[name] for name in UNUSUAL) or any(
        given[name] not in (None, -1) for name in OTHERS
    ):
        return None
    words = [os.fsdecode(word) for word in given["args"]]
    python = os.fsdecode(given["executable"] or words[0])
    if python != sys.executable or words[1:3] != ["-m", "pdgate"] or "--threads" in words:
        return None
    command = "".join(words[3:4])
    if command not in MODULES:
        return None
    streams = [
        standard if given[name] == -1 else given[name]
        for standard, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
    ]
    request = {
        "argv": words[2:],
        "cwd": os.path.abspath(os.fsdecode(given["cwd"] or os.curdir)),
        "env": {
            os.fsdecode(name): os.fsdecode(value)
            for name, value in (os.environ if given["env"] is None else given["env"]).items()
        },
        "new_session": given["start_new_session"],
    }
    with _lock:
        if command not in _preloaded:
            _preloaded[command] = Preloaded(MODULES[command])
        return _preloaded[command].fork(request, streams)


def _read_at_import(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(READ_AT_IMPORT) and name not in UNBUFFERED
    }


@atexit.register
def _close() -> None:
    for each in _preloaded.values():
        each.close()
