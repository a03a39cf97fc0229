"""Whether an engine may be given work is asked of the engine."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pdgate.engine.prefill_worker.health import Health
from tests.support.ports import free_port


@contextmanager
def engine(status: int) -> Iterator[str]:
    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on the test's output."""

    with HTTPServer(("127.0.0.1", 0), Api) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("status", "well"), [(200, True), (503, False)])
def test_an_engine_is_well_if_it_says_so(status: int, well: bool) -> None:
    with engine(status) as url:
        assert Health(url)() is well


def test_an_engine_that_is_not_there_is_not_well() -> None:
    assert not Health(f"http://127.0.0.1:{free_port()}")()


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "https://h", "http://"])
def test_what_cannot_be_asked_is_refused_at_the_start(url: str) -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        Health(url)
