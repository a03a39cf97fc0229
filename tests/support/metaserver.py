"""A gateway's metaserver, where decode engines of ascend-layerwise say where they are."""

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any


class Metaserver:
    """Keeps what is posted; answers with a status that a test may change."""

    def __init__(self) -> None:
        self.posts: queue.Queue[dict[str, Any]] = queue.Queue()
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                outer.posts.put(json.loads(body))
                self.send_response(outer.status)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/metaserver"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
