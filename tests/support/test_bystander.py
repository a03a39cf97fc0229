"""The instruments of tests/adversary see what they are there to see."""

import asyncio
import subprocess
import sys

from tests.support.besieged import Besieged
from tests.support.processes import child
from tests.support.resident import forget_peak, peak_bytes, resident_bytes

STALL_SECONDS = 0.2
HELD_BYTES = 100 << 20

STALLS = f"""
import socket, time
server = socket.create_server(("127.0.0.1", 0))
print("listens on", server.getsockname()[1], flush=True)
while True:
    peer, _ = server.accept()
    for number in range(10**9):
        if not (question := peer.recv(1 << 16)):
            break
        until = time.thread_time() + {STALL_SECONDS}
        # The twenty questions before the watch have a connection each; its third one stalls.
        while number == 2 and time.thread_time() < until:
            pass
        if number == 2:
            print("stalled", flush=True)
        peer.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-length: 0\\r\\n\\r\\n")
        if b"connection: close" in question:
            break
    peer.close()
"""
HOLDS = f"""
held = bytearray({HELD_BYTES})
del held
print("let go", flush=True)
input()
"""


async def test_a_bystander_tells_what_cpu_time_it_stood_behind() -> None:
    with child([sys.executable, "-c", STALLS]) as process:
        line = await asyncio.to_thread(process.wait_for_line, r"listens on (\d+)")
        async with Besieged(process, "127.0.0.1", int(line[1])).watched() as watch:
            await asyncio.to_thread(process.wait_for_line, "stalled")

    assert watch.bystander.answers >= 3
    assert watch.bystander.refused == 0
    assert STALL_SECONDS <= watch.bystander.longest_cpu_seconds < STALL_SECONDS * 2
    assert watch.bystander.longest_seconds >= STALL_SECONDS


def test_a_peak_is_seen_after_it_and_can_be_forgotten() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "let go\n"
        now = resident_bytes(process.pid)

        assert peak_bytes(process.pid) - now > HELD_BYTES * 0.9
        forget_peak(process.pid)
        assert peak_bytes(process.pid) - now < HELD_BYTES * 0.1
        process.communicate("\n")
