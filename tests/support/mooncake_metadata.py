"""Mooncake's metadata server as a process: values by key, over HTTP. `running` starts it.

In a process of its own, because Mooncake keeps the interpreter's lock while it asks.

Source: mooncake-transfer-engine 0.3.13.post1, mooncake/http_metadata_server.py.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

ROOT = Path(__file__).parents[2]


@contextmanager
def running() -> Iterator[str]:
    """The URL to give to Mooncake."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.mooncake_metadata"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/metadata"
        finally:
            process.kill()


class Metadata(BaseHTTPRequestHandler):
    kept: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        found = self.kept.get(self.path)
        self._answer(404 if found is None else 200, found or b"metadata not found")

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"metadata updated")

    def do_DELETE(self) -> None:
        self.kept.pop(self.path, None)
        self._answer(200, b"metadata deleted")

    def _answer(self, status: int, said: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *words: object) -> None:
        """Says nothing."""


def main() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
