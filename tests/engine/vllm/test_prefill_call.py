"""P's call of its own API, against a server of this test's."""

import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from pdgate.engine.vllm.intent import PREFILL_ID
from pdgate.engine.vllm.prefill_call import PrefillCalls
from tests.support import waiting
from tests.support.ports import free_port

SECONDS = waiting.PATIENCE_SECONDS


class Api:
    """Answers with `status`; with `hold`, not before the client has left."""

    def __init__(self) -> None:
        self.status = 200
        self.hold = False
        self.asked: queue.Queue[tuple[str, dict[str, str], Any]] = queue.Queue()
        self.left = threading.Event()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                api.asked.put((self.path, dict(self.headers.items()), body))
                if api.hold:
                    if not self.connection.recv(1):
                        api.left.set()
                    return
                self.send_response(api.status)
                self.end_headers()
                self.wfile.write(b'{"error": "busy"}')

            def log_message(self, format: str, *args: Any) -> None:
                """Tests are quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.close()


class Failures:
    def __init__(self) -> None:
        self.seen: queue.Queue[tuple[str, str]] = queue.Queue()

    def __call__(self, prefill_id: str, why: str) -> None:
        self.seen.put((prefill_id, why))


def test_the_prompt_becomes_a_request_of_one_token(api: Api) -> None:
    failures = Failures()
    calls = PrefillCalls(api.address, "tiny", SECONDS, failures)

    calls.start("kvt-1", [1, 2, 3])

    path, headers, body = api.asked.get(timeout=SECONDS)
    assert path == "/v1/completions"
    assert headers["X-Request-Id"] == "kvt-1"
    assert (body["model"], body["prompt"], body["max_tokens"]) == ("tiny", [1, 2, 3], 1)
    assert body["kv_transfer_params"] == {"do_remote_decode": True, PREFILL_ID: "kvt-1"}
    assert failures.seen.empty()


def test_it_says_the_key_that_vllm_was_told(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")

    PrefillCalls(api.address, "tiny", SECONDS, Failures()).start("kvt-1", [1, 2])

    _, headers, _ = api.asked.get(timeout=SECONDS)
    assert headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("rank", [None, 0, 1])
def test_its_own_rank_computes_it_and_no_other_behind_the_api(rank: int | None, api: Api) -> None:
    PrefillCalls(api.address, "tiny", SECONDS, Failures(), rank).start("kvt-1", [1, 2])

    _, headers, _ = api.asked.get(timeout=SECONDS)
    assert headers.get("X-data-parallel-rank") == (None if rank is None else str(rank))


def test_an_answer_that_is_an_error_is_a_failure(api: Api) -> None:
    api.status = 503
    failures = Failures()

    PrefillCalls(api.address, "tiny", SECONDS, failures).start("kvt-1", [1, 2])

    prefill_id, why = failures.seen.get(timeout=SECONDS)
    assert prefill_id == "kvt-1"
    assert "503" in why
    assert "busy" in why


def test_nobody_there_is_a_failure() -> None:
    failures = Failures()

    PrefillCalls(f"127.0.0.1:{free_port()}", "tiny", SECONDS, failures).start("kvt-1", [1])

    assert failures.seen.get(timeout=SECONDS)[0] == "kvt-1"


def test_a_cancelled_call_hangs_up(api: Api) -> None:
    """That is how vLLM learns that nobody wants the answer any more."""
    api.hold = True
    failures = Failures()
    calls = PrefillCalls(api.address, "tiny", SECONDS, failures)
    calls.start("kvt-1", [1, 2])
    api.asked.get(timeout=SECONDS)

    calls.cancel("kvt-1")
    calls.cancel("kvt-1")

    assert api.left.wait(SECONDS)
    assert failures.seen.get(timeout=SECONDS)[0] == "kvt-1"


def test_without_an_address_nothing_is_called() -> None:
    with pytest.raises(ValueError, match=r"extra_config\.api"):
        PrefillCalls("", "tiny", SECONDS, Failures()).start("kvt-1", [1])
