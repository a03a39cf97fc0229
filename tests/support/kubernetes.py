"""A small API server for EndpointSlices, on a real socket and in threads of its own.

    with api_server() as server:
        server.put(endpoint_slice("decode-x7", {"pdgate.dev/role": "decode"}, [pod("10.0.0.2")]))
        Access(server.url, server.namespace)

It lists and watches as Kubernetes does: versions of one counter, chunked answers, label
selectors (who no longer matches is DELETED), bookmarks, 410 for a version that is forgotten as
the first event of a watch, `timeoutSeconds`, 401 for a token that it does not know. And it can
be cut off, frozen, stopped, started, and told to answer anything.
"""

import asyncio
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.support import waiting
from tests.support.certificates import Certificate
from tests.support.kubernetes_objects import NAMESPACE, Event, Json, event_line, matches, status
from tests.support.ports import LOOPBACK

PATIENCE_SECONDS = waiting.PATIENCE_SECONDS
KIND = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came."""

    path: str
    query: Mapping[str, str]
    authorization: str

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query

    @property
    def is_beat(self) -> bool:
        return "limit" in self.query


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class ApiServer:
    """
    Attributes:
        token: The only one that it lets in; None lets in everybody.
        answer: What to say instead, if it returns something.
        asked: All requests so far.
    """

    def __init__(self, certificate: Certificate | None) -> None:
        self.namespace = NAMESPACE
        self.token: str | None = None
        self.answer: Callable[[Asked], Answer | None] = lambda _: None
        self.asked: list[Asked] = []
        self.changed = threading.Condition()
        self.is_frozen = False
        # A watch of another generation has been cut off or ended.
        self.generation, self.ends_politely = 0, True
        self.raw: list[bytes] = []
        self.history: list[Event] = []
        self.forgotten = self.version = 100
        self.slices: dict[str, Json] = {}
        self._certificate = certificate
        self._port = 0
        self._listening: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://{LOOPBACK}:{self._port}"

    @property
    def is_running(self) -> bool:
        return self._listening is not None

    def start(self) -> None:
        handler = type("Bound", (_Handler,), {"api": self})
        server = _Listening((LOOPBACK, self._port), handler)
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate.cert, self._certificate.key)
            server.tls = context
        self._port = server.server_address[1]
        self._listening = server
        self._thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Connections are refused, and those that stand are cut off."""
        if self._listening is None or self._thread is None:
            return
        self._listening.shutdown()
        self._listening.server_close()
        self._thread.join()
        self._listening = None
        self.cut()

    def put(self, said: Json) -> None:
        with self.changed:
            name = said["metadata"]["name"]
            self.version += 1
            metadata = {
                "uid": f"uid-{name}",
                "creationTimestamp": "2026-11-20T09:00:00Z",
                **said["metadata"],
                "resourceVersion": str(self.version),
            }
            after = {**said, "metadata": metadata}
            self.history.append(Event(self.version, self.slices.pop(name, None), after))
            self.slices[name] = after
            self.changed.notify_all()

    def delete(self, name: str) -> None:
        with self.changed:
            self.version += 1
            self.history.append(Event(self.version, self.slices.pop(name), None))
            self.changed.notify_all()

    def say(self, line: bytes) -> None:
        """Those who watch now are told this."""
        with self.changed:
            self.raw.append(line)
            self.changed.notify_all()

    def bookmark(self) -> None:
        """Something happened to what nobody here asked for."""
        self.version += 1
        metadata = {"resourceVersion": str(self.version), "creationTimestamp": None}
        bookmark = {
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": metadata,
            "endpoints": None, "ports": None, "addressType": "",
        }  # fmt: skip
        self.say(json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n")

    def compact(self) -> None:
        """Forgets what happened so far; only what it led to is left."""
        with self.changed:
            self.forgotten = self.version
            self.history.clear()

    def restore(self, version: int) -> None:
        """An older state of the cluster, without any slice."""
        with self.changed:
            self.version = self.forgotten = version
            self.slices.clear()
            self.history.clear()

    def cut(self) -> None:
        """Watches break off in the middle."""
        self._end(politely=False)

    def end_watches(self) -> None:
        """As after `timeoutSeconds`."""
        self._end(politely=True)

    def _end(self, politely: bool) -> None:
        with self.changed:
            self.generation, self.ends_politely = self.generation + 1, politely
            self.changed.notify_all()

    def freeze(self) -> None:
        """Connections stay, and nothing answers."""
        self._freeze(True)

    def thaw(self) -> None:
        self._freeze(False)

    def _freeze(self, is_frozen: bool) -> None:
        with self.changed:
            self.is_frozen = is_frozen
            self.changed.notify_all()

    def note(self, asked: Asked) -> tuple[int, int]:
        """How much had been said by then, and how often watches had been ended."""
        with self.changed:
            self.asked.append(asked)
            self.changed.notify_all()
            return len(self.raw), self.generation

    async def heard(self, wanted: Callable[[Asked], bool], times: int = 1) -> list[Asked]:
        """When so many such requests have come, which are those."""

        def found() -> list[Asked]:
            return [each for each in self.asked if wanted(each)]

        def wait() -> None:
            with self.changed:
                self.changed.wait_for(lambda: len(found()) >= times, timeout=PATIENCE_SECONDS)

        # While the loop goes on, which those who ask need.
        await asyncio.to_thread(wait)
        assert len(found()) >= times, self.asked
        return found()


class _Listening(ThreadingHTTPServer):
    daemon_threads = True
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        # In the connection's thread, so that a slow handshake holds up nobody else.
        with suppress(OSError):
            if self.tls is None:
                super().finish_request(request, client_address)
                return
            with self.tls.wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, client_address)


class _Handler(BaseHTTPRequestHandler):
    api: ApiServer
    protocol_version = "HTTP/1.1"
    # Head and body of an answer are written apart.
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Not into the output of tests."""

    def do_GET(self) -> None:
        api = self.api
        parts = urlsplit(self.path)
        authorization = self.headers.get("authorization", "")
        asked = Asked(parts.path, dict(parse_qsl(parts.query)), authorization)
        if not api.is_running:
            # A connection that stood when it was stopped.
            self.close_connection = True
            return
        since = api.note(asked)
        with api.changed:
            api.changed.wait_for(lambda: not api.is_frozen)
            answer = api.answer(asked) or self._refusal(asked)
        if answer is not None:
            self._send(answer)
        elif asked.is_watch:
            self._watch(asked, *since)
        else:
            self._list(asked)

    def _refusal(self, asked: Asked) -> Answer | None:
        api = self.api
        if api.token is not None and asked.authorization != f"Bearer {api.token}":
            return _answer(401, status(401, "Unauthorized", "Unauthorized"))
        if asked.path != KIND.format(api.namespace):
            return _answer(404, status(404, "NotFound", "the server could not find it"))
        return None

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.code)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer.body)))
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    def _list(self, asked: Asked) -> None:
        api, selector = self.api, asked.query.get("labelSelector", "")
        with api.changed:
            found = [each for each in api.slices.values() if matches(selector, each)]
            metadata: Json = {"resourceVersion": str(api.version)}
        limit = int(asked.query.get("limit", 0))
        if limit and len(found) > limit:
            metadata |= {"continue": "eyJ2IjoibWV0YS", "remainingItemCount": len(found) - limit}
            found = found[:limit]
        kind = {"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1"}
        self._send(_answer(200, {**kind, "metadata": metadata, "items": found}))

    def _watch(self, asked: Asked, raw: int, generation: int) -> None:
        api, selector = self.api, asked.query.get("labelSelector", "")
        deadline = time.monotonic() + int(asked.query["timeoutSeconds"])
        at = int(asked.query["resourceVersion"])
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        with api.changed:
            if at < api.forgotten:
                message = f"too old resource version: {at} ({api.forgotten})"
                gone = {"type": "ERROR", "object": status(410, "Expired", message)}
                self._chunk(json.dumps(gone).encode() + b"\n")
                self.wfile.write(b"0\r\n\r\n")
                return
            while True:
                for line in api.raw[raw:]:
                    self._chunk(line)
                raw = len(api.raw)
                for event in api.history:
                    if event.version > at and (told := event_line(selector, event)):
                        self._chunk(told)
                at = max([at, *(event.version for event in api.history)])
                if api.generation != generation:
                    break
                if not api.changed.wait(deadline - time.monotonic()):
                    break
                api.changed.wait_for(lambda: not api.is_frozen)
            politely = api.generation == generation or api.ends_politely
        if politely:
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = True

    def _chunk(self, piece: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def _answer(code: int, said: Json) -> Answer:
    return Answer(code, json.dumps(said).encode())


@contextmanager
def api_server(certificate: Certificate | None = None) -> Iterator[ApiServer]:
    """With a certificate it speaks https."""
    server = ApiServer(certificate)
    try:
        yield server
    finally:
        server.thaw()
        server.stop()
