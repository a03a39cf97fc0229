"""bystander.py HOST PORT CA PID...: a client that wants little while others attack.

It asks for /health on a kept connection, again and again, until its stdin is closed. Then it tells
as JSON how long it waited: by the clock, and in CPU time that the gateway's main threads used
meanwhile. Of a process with one event loop the latter is what the bystander stood behind, and
does not depend on how busy the machine is; it is an upper bound of the longest callback. What the
gateway uses after its answer, until the bystander gets a core, counts too: so it goes before others,
where it may. CA is the file of an authority where the gateway speaks TLS, else empty.
"""

import json
import os
import select
import socket
import ssl
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

from tests.support.resident import cpu_seconds

ASKS = b"GET /health HTTP/1.1\r\nhost: g\r\n\r\n"
PAUSE_SECONDS = 0.005
PATIENCE_SECONDS = 60
AHEAD = -10
"""Of other processes' niceness, which takes root."""


@dataclass
class Waits:
    """
    Attributes:
        answers: How many there were.
        refused: Times that it was hung up on, and came again.
        longest_seconds: By the clock, from a question to its answer.
        longest_cpu_seconds: Of the gateway's main threads together, meanwhile.
    """

    answers: int = 0
    refused: int = 0
    longest_seconds: float = 0.0
    longest_cpu_seconds: float = 0.0


def main(host: str, port: int, ca: str, pids: list[int]) -> None:
    tls = ssl.create_default_context(cafile=ca) if ca else None

    def connected() -> socket.socket:
        while True:
            bare = socket.create_connection((host, port), PATIENCE_SECONDS)
            try:
                return tls.wrap_socket(bare, server_hostname=host) if tls else bare
            except OSError:
                # Its handshake was the oldest of too many.
                waits.refused += 1
                bare.close()

    with suppress(PermissionError):
        os.nice(AHEAD)
    waits = Waits()
    connection = connected()
    told = False
    while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
        asked, used = time.monotonic(), sum(map(cpu_seconds, pids))
        try:
            connection.sendall(ASKS)
            answered = connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        except (ConnectionError, ssl.SSLError):
            answered = False
        if not answered:
            waits.refused += 1
            connection.close()
            connection = connected()
            continue
        waits.answers += 1
        waits.longest_seconds = max(waits.longest_seconds, time.monotonic() - asked)
        waits.longest_cpu_seconds = max(
            waits.longest_cpu_seconds, sum(map(cpu_seconds, pids)) - used
        )
        if not told:
            told = True
            print("asking", flush=True)
    print(json.dumps(asdict(waits)))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], [int(word) for word in sys.argv[4:]])
