"""P asks itself: the prompt that D sent becomes a request at P's own HTTP API.

    D's connector -- Prefill (KV port) --> P's worker -- POST /v1/completions --> P's API server
                                                            |
                  <-------- KV --------- P's worker <-- a request like any other

vLLM's connector API has no way to put a request into the engine, and its API server is a
process of its own. So the request goes in where all do, and is queued, metered and aborted
like them: closing the connection aborts it. Its answer (one token) is thrown away.
"""

import http.client
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from pdgate.engine.vllm.intent import PREFILL_ID
from pdgate.transfer.runtime.listener import shut

PATH: Final = "/v1/completions"
CONNECT_SECONDS: Final = 5.0
MAX_CALLS: Final = 256
"""Each is a thread and a connection; more would only wait in vLLM's queue."""

MAX_REASON_BYTES: Final = 300
NOTHING: Final[Mapping[str, Any]] = {}

log = logging.getLogger(__name__)

Failed = Callable[[str, str], None]
"""Called with the id and why, on a thread of the call's."""


class PromptCalls(Protocol):
    """Has our own engine compute a prompt."""

    def start(
        self, prefill_id: str, prompt: Sequence[int], params: Mapping[str, Any] = NOTHING
    ) -> None:
        """`params`: more kv_transfer_params. Raises ValueError if this engine cannot."""

    def cancel(self, prefill_id: str) -> None:
        """Cancel a call, to no effect on one that is over."""


class PrefillCalls(PromptCalls):
    """
    Attributes:
        api: host:port of our own HTTP API; empty if it was not told.
        model: What the API calls the model.
        rank: What the API calls our data-parallel rank, if it has several: no other may compute it.
    """

    def __init__(
        self, api: str, model: str, seconds: float, failed: Failed, rank: int | None = None
    ) -> None:
        self._api = api
        self._rank = rank
        self._model = model
        self._seconds = seconds
        self._failed = failed
        self._lock = threading.Lock()
        self._calls: dict[str, http.client.HTTPConnection] = {}

    def start(
        self, prefill_id: str, prompt: Sequence[int], params: Mapping[str, Any] = NOTHING
    ) -> None:
        if not self._api:
            raise ValueError("this engine was not told its own API (kv_connector_extra_config.api)")
        connection = http.client.HTTPConnection(self._api, timeout=CONNECT_SECONDS)
        with self._lock:
            if len(self._calls) >= MAX_CALLS:
                raise ValueError(f"{MAX_CALLS} prefills are under way already")
            self._calls[prefill_id] = connection
        thread = threading.Thread(
            target=self._run,
            args=(prefill_id, connection, self._body(prefill_id, prompt, params)),
            name="pdgate-prefill",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:
            with self._lock:
                del self._calls[prefill_id]
            raise ValueError(str(error)) from None

    def cancel(self, prefill_id: str) -> None:
        with self._lock:
            connection = self._calls.pop(prefill_id, None)
        if connection is not None and connection.sock is not None:
            shut(connection.sock)

    def _run(
        self, prefill_id: str, connection: http.client.HTTPConnection, body: Mapping[str, Any]
    ) -> None:
        why = ""
        try:
            connection.connect()
            if connection.sock is not None:
                connection.sock.settimeout(self._seconds)
            if self._wanted(prefill_id):
                connection.request("POST", PATH, json.dumps(body), self._headers(prefill_id))
                answer = connection.getresponse()
                said = answer.read()
                if answer.status != http.HTTPStatus.OK:
                    text = said[:MAX_REASON_BYTES].decode(errors="replace")
                    why = f"our own API answered {answer.status}: {text}"
        except (OSError, http.client.HTTPException) as error:
            why = f"our own API at {self._api}: {error!r}"
        finally:
            connection.close()
        cancelled = not self._wanted(prefill_id)
        with self._lock:
            self._calls.pop(prefill_id, None)
        if why and not cancelled:
            log.warning("prefill %s failed: %s", prefill_id, why)
        if why or cancelled:
            self._failed(prefill_id, why or "it was cancelled")

    def _wanted(self, prefill_id: str) -> bool:
        with self._lock:
            return prefill_id in self._calls

    def _body(
        self, prefill_id: str, prompt: Sequence[int], params: Mapping[str, Any]
    ) -> dict[str, Any]:
        # One token is the least that vLLM computes; it costs no KV.
        return {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": 1,
            "temperature": 0,
            "stream": False,
            "kv_transfer_params": {"do_remote_decode": True, PREFILL_ID: prefill_id, **params},
        }

    def _headers(self, prefill_id: str) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "X-Request-Id": prefill_id}
        if self._rank is not None:
            headers["X-data-parallel-rank"] = str(self._rank)
        # vLLM's own variable for what --api-key says.
        if key := os.environ.get("VLLM_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        return headers
