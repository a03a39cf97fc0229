"""The gateway on uvloop and real sockets: CPU time of the guard's calls, by user and kernel.

python -m benchmarks.path.sockets CALLS      JSON: scenario -> [user, kernel] microseconds of a call
"""

import asyncio
import json
import resource
import socket
import sys
from asyncio.subprocess import PIPE, Process

import uvicorn
import uvloop

from benchmarks.guard.gateway import SETTINGS
from benchmarks.guard.memory_wire import HOST
from benchmarks.safety.runs import SHOWN
from pdgate.gateway.config import Settings
from pdgate.gateway.front.hot_protocol import HotProtocol
from pdgate.gateway.wiring import build


async def used(calls: int) -> dict[str, tuple[float, float]]:
    """Raises EOFError if the peer has gone, which says why itself."""
    command = (sys.executable, "-m", "benchmarks.path.peer", str(calls))
    peer = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
    try:
        with socket.create_server((HOST, 0)) as listening:
            prefill, decode = map(int, (await _heard(peer)).split())
            front = build(_settings(prefill, decode))
            config = uvicorn.Config(
                front, http=HotProtocol, proxy_headers=False, log_config=None, access_log=False
            )
            server = uvicorn.Server(config)
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve([listening]))
                try:
                    return await _measured(peer, listening.getsockname()[1], calls)
                finally:
                    server.should_exit = True
    finally:
        if peer.returncode is None:
            peer.kill()
        await peer.wait()


async def _measured(peer: Process, port: int, calls: int) -> dict[str, tuple[float, float]]:
    found = {}
    _tell(peer, str(port))
    for scenario in SHOWN:
        await _heard(peer)
        before = resource.getrusage(resource.RUSAGE_SELF)
        _tell(peer, "go")
        await _heard(peer)
        after = resource.getrusage(resource.RUSAGE_SELF)
        user, kernel = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
        found[scenario.name] = user * 1e6 / calls, kernel * 1e6 / calls
    return found


async def _heard(peer: Process) -> str:
    assert peer.stdout is not None
    line = await peer.stdout.readline()
    if not line:
        raise EOFError("the peer has gone")
    return line.decode()


def _tell(peer: Process, line: str) -> None:
    assert peer.stdin is not None
    peer.stdin.write(f"{line}\n".encode())


def _settings(prefill: int, decode: int) -> Settings:
    """As the guard's, with one engine of each role."""
    ports = {"prefill": prefill, "decode": decode}
    instances = [{"url": f"http://{HOST}:{port}", "role": role} for role, port in ports.items()]
    return Settings.model_validate(
        {**SETTINGS.model_dump(exclude_unset=True), "instances": instances}
    )


if __name__ == "__main__":
    print(json.dumps(uvloop.run(used(int(sys.argv[1])))))
