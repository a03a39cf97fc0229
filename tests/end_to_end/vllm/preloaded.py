"""vLLM, imported once: the engines of a run are forks of this process.     python preloaded.py < requests

Three processes of an engine import vLLM, for six CPU seconds each. Here the API server is a fork of what has imported
it already; its core and the workers are forks of a sibling, set aside before the API server ran a line of vLLM. As with
vLLM's own `spawn`, none of these has a descriptor, a thread or a lock of another, and all are in the API server's session.

    run ── this ── API server ── sibling ──┬── EngineCore
                                           └── Worker

A request is a line of JSON: {"command": ["serve", ...], "env": {...}, "log": PATH, "ended": PATH}. The pid is said on
stdout; the exit status is written to "ended" when there is one. It runs with vLLM's Python and imports no tests.

Sources: CPython 3.11, multiprocessing/forkserver.py; vLLM 0.32.0, vllm/envs.py ("both spawn and fork work").
"""

import gc
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from importlib import import_module
from multiprocessing import connection, forkserver, resource_tracker, spawn
from pathlib import Path
from typing import Any, Final

MODULES: Final = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.llama",
)

CHILD_ENDED: Final = {signal.SIGCHLD}


def main() -> None:
    for module in MODULES:
        import_module(module)
    # A lock that another thread holds would be held in a fork for ever.
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    carry_environment()
    envs: Any = import_module("vllm.envs")
    # vLLM's platform for the CPU says "spawn" in the environment.
    envs.environment_variables["VLLM_WORKER_MULTIPROC_METHOD"] = lambda: "forkserver"
    ended: dict[int, Path] = {}

    def bury(*_: object) -> None:
        while ended:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            path = ended.pop(pid)
            written = path.with_suffix(".part")
            written.write_text(str(os.waitstatus_to_exitcode(status)))
            written.rename(path)

    signal.signal(signal.SIGCHLD, bury)
    for line in sys.stdin:
        request = json.loads(line)
        # What ends at once is buried once it is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_ENDED)
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_ENDED)
            become_engine(request)
        ended[pid] = Path(request["ended"])
        signal.pthread_sigmask(signal.SIG_UNBLOCK, CHILD_ENDED)
        print(pid, flush=True)


def become_engine(request: Mapping[str, Any]) -> None:
    """Run `vllm serve`, and end with it."""
    os.setsid()
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(request["log"], os.O_WRONLY)
    for descriptor, standard in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, standard)
    os.close(nothing)
    os.close(log)
    os.environ.update(request["env"])
    set_sibling_aside()
    sys.argv = ["vllm", *request["command"]]
    command = import_module("vllm.entrypoints.cli.main")
    sys.exit(command.main())


def set_sibling_aside() -> None:
    """The fork server of this API server, its core and its workers, which is one that has imported vLLM."""
    server: Any = forkserver._forkserver
    resource_tracker.ensure_running()
    # It is there from here on; a core would start another for its workers.
    server.ensure_running = resource_tracker.ensure_running
    listener = socket.socket(socket.AF_UNIX)
    address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
    listener.bind(address)
    listener.listen()
    alive_read, alive_write = os.pipe()
    if os.fork() == 0:
        os.close(alive_write)
        # It goes when all that it serves are gone.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            forkserver.main(listener.detach(), alive_read, [])
        finally:
            os._exit(0)
    listener.close()
    os.close(alive_read)
    server._forkserver_address, server._forkserver_alive_fd = address, alive_write


def carry_environment() -> None:
    """To what the sibling starts, as `spawn` does: vLLM sets variables before it starts its core."""
    given, prepare = spawn.get_preparation_data, spawn.prepare

    def with_environment(name: str) -> Any:
        return {**given(name), "environment": dict(os.environ)}

    def prepare_environment(data: Any) -> None:
        # Only what differs: setproctitle, by which vLLM names its processes, looks for where the environment began.
        environment = data.pop("environment")
        for name in os.environ.keys() - environment.keys():
            del os.environ[name]
        for name, value in environment.items() - os.environ.items():
            os.environ[name] = value
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        prepare(data)

    spawn.get_preparation_data = with_environment
    spawn.prepare = prepare_environment


if __name__ == "__main__":
    main()
