"""One command of pdgate, imported once: the processes that tests start of it are forks of this one.

    python -m tests.support.preloaded DESCRIPTOR MODULE...      started by forked.py alone

A start of `pdgate engine` takes 0.9 s of CPU time, of which 0.8 s are imports, and a run of all tests starts some
thousand processes. A request is a message on the socket DESCRIPTOR, a line of JSON with three descriptors; the answer
is the pid. What is forked is nobody's child here: it goes to the nearest ancestor that takes orphans (forked.py).

It has no descriptor, handler of signals, thread or variable of this process, and runs `pdgate.__main__` as
`python -m pdgate` does. What differs from a start of its own: the name in /proc, and the seed of hashes.
"""

import gc
import json
import os
import runpy
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

LONGEST_REQUEST: Final = 1 << 18
"""Bytes. A command and an environment; what is longer is started by itself."""


def main(descriptor: int, modules: Sequence[str]) -> None:
    requests = socket.socket(fileno=descriptor)
    for module in modules:
        import_module(module)
    # A lock that another thread holds would be held in a fork for ever.
    assert threading.active_count() == 1, threading.enumerate()
    # What is imported here stays, and a look at it would copy its pages into each fork.
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 3)
        if not message:
            return
        pid = orphan()
        if pid == 0:
            requests.close()
            become(json.loads(message), descriptors)
            return
        for taken in descriptors:
            os.close(taken)
        requests.send(str(pid).encode())


def orphan() -> int:
    """0 in a process whose parent has ended; in this one, its pid."""
    said, says = os.pipe()
    between = os.fork()
    if between:
        os.close(says)
        os.waitpid(between, 0)
        with os.fdopen(said) as heard:
            return int(heard.read())
    os.close(said)
    pid = os.fork()
    if pid:
        os.write(says, str(pid).encode())
        os._exit(0)
    os.close(says)
    return 0


def become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    for standard, given in enumerate(descriptors):
        os.dup2(given, standard)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    if request["new_session"]:
        os.setsid()
    if request["cwd"]:
        os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[0] = os.getcwd()
    sys.argv = request["argv"]
    runpy.run_module("pdgate", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
