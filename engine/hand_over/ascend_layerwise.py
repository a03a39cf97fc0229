"""ascend-layerwise: decode says at a metaserver where it is, prefill comes to it, and writes layer by layer.

    decode    {do_remote_prefill: true, metaserver}    POSTs {request_id, do_remote_decode: true, remote_host, ...}
    prefill   that, word for word                      calls at remote_host:remote_port, and says where its KV side is
    decode    asks for the push there, as everywhere here; vllm-ascend's prefill writes without being asked

A call at decode's port counts only for a request that waits for one, and from who has proven itself. The metaserver is
asked three times.

Source: vllm-project/vllm-ascend 182b75e, distributed/kv_transfer/kv_p2p/mooncake_layerwise_connector.py
(update_state_after_alloc, _access_metaserver).
"""

import http.client
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

from pdgate.engine.connector import Arrival, Keep, Load, Pages
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over import timely_http
from pdgate.engine.hand_over.two_sided import TwoSided, wire_id
from pdgate.engine.prefill_worker.wire import BadLine, Claim, ClaimWord, Lines, WorkerAnswer
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.source import Source
from pdgate.transfer.runtime import fleet
from pdgate.transfer.runtime.channel import Channel, Door, Watch, dial
from pdgate.transfer.runtime.listener import Listener

PURPOSE: Final = "called"
POST_TRIES: Final = 3
POST_SECONDS: Final = 5.0
SPEAK_SECONDS: Final = 5.0
CALLERS: Final = 8

log = logging.getLogger(__name__)


@dataclass(slots=True)
class DecodeMeeting:
    """What decode has said of a request, and where prefill is, once it has called.

    Attributes:
        over: It has called, or is not waited for any more.
    """

    request_id: str
    posted: bool = False
    blocks: Sequence[int] = ()
    cached: int = 0
    at: tuple[str, int] | None = None
    over: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected(Source):
    """Pages of which prefill will say where they are.

    Attributes:
        meeting: Once the load is started; before that a source goes from process to process.
    """

    metaserver: str
    meeting: DecodeMeeting | None = None


class AscendLayerwiseHandOver(TwoSided):
    takes_ranks: ClassVar = True
    pushes: ClassVar = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        settings = self.settings
        self._lock = threading.Lock()
        self._meetings: dict[str, DecodeMeeting] = {}
        try:
            sock = fleet.listening("the side channel", settings.kv_host, 0, settings.identity)
        except BaseException:
            super().close()
            raise
        self._port: int = sock.getsockname()[1]
        door = Door("called", settings.identity, {PURPOSE: self._called})
        self._listener = Listener("pdgate-called", sock, door)
        self._callers = ThreadPoolExecutor(CALLERS, "pdgate-calls")

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        params = arrival.params or {}
        if read.flag(params, "do_remote_decode"):
            at = read.host(params, "remote_host"), read.port(params, "remote_port")
            key = read.text(params, "request_id")
            keep = self.keep_for(arrival.id, key)
            if self.settings.speaks_for_all:
                self._callers.submit(self._call, arrival.id, key, at)
            return keep
        if not read.flag(params, "do_remote_prefill"):
            return None
        chat = "messages" in arrival.body
        key = f"chatcmpl-{wire_id(arrival)}" if chat else f"cmpl-{wire_id(arrival)}-{arrival.index}"
        lease = self.settings.lease_seconds
        url = _url(read.text(params, "metaserver"))
        source = Expected("", 0, key, lease, push=True, metaserver=url)
        return self.load_from(source, len(arrival.prompt) - 1)

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        meeting = DecodeMeeting(request_id, blocks=pages.block_ids, cached=skip_tokens)
        source: Expected = replace(load.ticket, meeting=meeting)
        if skip_tokens < load.tokens:
            with self._lock:
                self._meetings[source.key] = meeting
        super().start(request_id, replace(load, ticket=source), pages, skip_tokens)

    def _say_goodbye(self, source: Source) -> None:
        """No prefill was asked yet."""

    def cancel(self, request_id: str) -> None:
        with self._lock:
            found = [one for one in self._meetings.values() if one.request_id == request_id]
        for meeting in found:
            meeting.over.set()
        super().cancel(request_id)

    def locate(self, source: Source, until: float, watch: Watch) -> tuple[str, int]:
        assert isinstance(source, Expected)
        meeting = source.meeting
        assert meeting is not None, "a load that was started"
        try:
            first = self.settings.speaks_for_all
            if first and not meeting.posted and not meeting.over.is_set():
                meeting.posted = True
                self._post(source, meeting, until, watch)
            meeting.over.wait(max(0.0, until - time.monotonic()))
        finally:
            # Whatever comes now comes too late, and who asks again is answered at once.
            meeting.over.set()
            with self._lock:
                self._meetings.pop(source.key, None)
        if meeting.at is None:
            raise HandOverError(Why.UNKNOWN, "prefill has not called in time")
        return meeting.at

    def _post(self, source: Expected, meeting: DecodeMeeting, until: float, watch: Watch) -> None:
        """Raises HandOverError."""
        host, _ = self.service_address
        said = {
            "token_ids": [],
            "request_id": source.key,
            "do_remote_prefill": False,
            "do_remote_decode": True,
            "remote_block_ids": [list(meeting.blocks)],
            "remote_block_size": [self._layout.block_tokens],
            "remote_engine_id": self.engine_id,
            "remote_host": host,
            "remote_port": self._port,
            "remote_tp_size": self._layout.tp,
            "remote_pcp_size": 1,
            "remote_dcp_size": 1,
            "remote_cached_tokens": meeting.cached,
        }
        error: Exception | None = None
        for _ in range(POST_TRIES):
            try:
                status = _posted(source.metaserver, said, until, watch)
            except (OSError, http.client.HTTPException) as failure:
                error = failure
                continue
            if status == http.HTTPStatus.OK:
                return
            raise HandOverError(Why.BROKEN, f"the metaserver answered {status}")
        raise HandOverError(Why.BROKEN, f"the metaserver at {source.metaserver}: {error!r}")

    def _called(self, channel: Channel) -> None:
        """Prefill says where it is. Raises OSError."""
        channel.sock.settimeout(SPEAK_SECONDS)
        lines = Lines(channel)
        try:
            claim = lines.hear(Claim)
        except BadLine as error:
            log.info("a call that says nothing: %s", error)
            return
        with self._lock:
            meeting = self._meetings.get(claim.id)
            taken = meeting is not None and meeting.at is None and not meeting.over.is_set()
            if meeting is not None and taken:
                meeting.at = claim.host, claim.port
        lines.say(WorkerAnswer(ClaimWord.YOURS if taken else ClaimWord.GONE))
        if meeting is not None and taken:
            self.settings.tell_ranks((claim.id, (claim.host, claim.port)))
            meeting.over.set()

    def told(self, word: tuple[str, tuple[str, int]]) -> None:
        """Hear from the first rank where prefill is, which calls there alone."""
        key, at = word
        with self._lock:
            meeting = self._meetings.get(key)
            if meeting is not None:
                meeting.at = at
        if meeting is not None:
            meeting.over.set()

    def _call(self, request_id: str, key: str, at: tuple[str, int]) -> None:
        """What decode does not want any more, or cannot be told of, is not computed."""
        host, port = self.service_address
        try:
            with dial(at, self.settings.identity, PURPOSE, SPEAK_SECONDS) as channel:
                channel.sock.settimeout(SPEAK_SECONDS)
                lines = Lines(channel)
                lines.say(Claim(key, 1, host, port))
                if lines.hear(WorkerAnswer).said is ClaimWord.YOURS:
                    return
            log.info("decode does not wait for %s", key)
        except (OSError, BadLine) as error:
            log.warning("decode cannot be told of %s: %s", key, error)
        self.core.abort(request_id)

    def close(self) -> None:
        self._listener.close()
        self._callers.shutdown(cancel_futures=True)
        with self._lock:
            waiting = list(self._meetings.values())
        for meeting in waiting:
            meeting.over.set()
        super().close()


def _url(found: str) -> str:
    try:
        parts = urlsplit(found)
        if parts.scheme == "http" and parts.hostname and parts.port:
            return found
    except ValueError:
        pass
    raise ValueError("metaserver must be a URL, http://host:port/path")


def _posted(url: str, said: Mapping[str, Any], until: float, watch: Watch) -> int:
    """Raises OSError, HTTPException."""
    parts = urlsplit(url)
    address = parts.hostname or "", parts.port or 0
    headers, body = {"content-type": "application/json"}, json.dumps(said).encode()
    until = min(until, time.monotonic() + POST_SECONDS)
    return timely_http.asked(address, "POST", parts.path, headers, body, until, watch).status
