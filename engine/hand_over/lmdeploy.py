"""lmdeploy: engines are joined by HTTP first, prefill keeps the blocks of a session, decode reads them and goes on behind its token.

    GET  /distserve/engine_info        what both need to know of the other's cache, as a text that is JSON
    POST /distserve/p2p_initialize     answers where this side listens
    POST /distserve/p2p_connect        where the peer of that id, which is its URL, does
    prefill   with_cache, preserve_cache, session_id    ->  cache_block_ids, remote_token_ids
    decode    migration_request                         fails where its engine is not joined, or is another process by now
    POST /distserve/free_cache         prefill drops a session
    POST /distserve/p2p_drop_connect   this side forgets the peer

Unlike LMDeploy's, decode reads what prefill holds for the session, and not the blocks that its leg names.

Source: InternLM/lmdeploy 1263d5c, lmdeploy/pytorch/disagg/conn/{protocol,engine_conn}.py, serve/openai/endpoints/distserve.py.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from pdgate.engine.connector import Arrival, Keep, Load, Pages
from pdgate.engine.hand_over import params as read
from pdgate.engine.hand_over.two_sided import TwoSided
from pdgate.protocols.dialects import lmdeploy
from pdgate.transfer.messenger.errors import HandOverError, Why
from pdgate.transfer.messenger.source import FirstTokenSource, Source
from pdgate.transfer.runtime.channel import Watch

MOST_SESSION: Final = 2**63 - 1
MOST_PEERS: Final = 1024
"""An engine keeps as many; the oldest is forgotten first."""

Peer = tuple[str, int, str]
"""Host and port of its KV side, and the name of its life."""


class LMDeployHandOver(TwoSided):
    hands_first_token: ClassVar = True

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._peers: dict[str, Peer] = {}
        self._sessions: dict[str, int] = {}

    def plan(self, arrival: Arrival) -> Load | Keep | None:
        body = arrival.body
        if read.flag(body, "with_cache") and read.flag(body, "preserve_cache"):
            session = read.integer(body, "session_id", 0, MOST_SESSION)
            keep = self.keep_for(arrival.id, _key(session))
            self._sessions[arrival.id] = session
            return keep
        if body.get(lmdeploy.FIELD) is None:
            return None
        params = read.fields(body, lmdeploy.FIELD)
        read.block_ids({"ids": [params.get("remote_block_ids")]}, "ids")
        host, port, life = self._peers.get(read.text(params, "remote_engine_id"), ("", 0, ""))
        source = FirstTokenSource(
            host,
            port,
            _key(read.integer(params, "remote_session_id", 0, MOST_SESSION)),
            0.0,
            engine_id=life,
            first_token=read.integer(params, "remote_token_id", 0, 2**31),
        )
        return self.load_from(source, len(arrival.prompt))

    def locate(self, source: Source, until: float, watch: Watch) -> tuple[str, int]:
        if not source.host:
            raise HandOverError(Why.WRONG_ENGINE, "the prefill engine is not joined with this one")
        return source.host, source.port

    def start(self, request_id: str, load: Load, pages: Pages, skip_tokens: int) -> None:
        self.core.sampled(request_id, load.ticket.first_token)
        super().start(request_id, load, pages, skip_tokens)

    def kept(
        self,
        request_id: str,
        keep: Keep,
        pages: Pages,
        first_token: int | None,
        finish_reason: str,
    ) -> Mapping[str, Any] | None:
        # Decode hears it from the gateway.
        kept = super().kept(request_id, keep, pages, None, finish_reason)
        session = self._sessions.pop(request_id, None)
        if kept is None:
            return None
        tokens = [] if first_token is None else [first_token]
        return {"id": str(session), **kept, "remote_token_ids": tokens}

    def answer(self, request_id: str, pages: Pages) -> Mapping[str, Any]:
        return {"cache_block_ids": list(pages.block_ids)}

    def dropped(self, request_id: str, why: str) -> bool:
        self._sessions.pop(request_id, None)
        return super().dropped(request_id, why)

    def written(
        self, answer: dict[str, Any], params: Mapping[str, Any] | None, prompt: Sequence[int]
    ) -> dict[str, Any]:
        return answer | dict(params or {})

    def routes(self) -> Mapping[str, Callable[[read.Fields], Any]]:
        return {
            lmdeploy.INFO: self._info,
            lmdeploy.INITIALIZE: self._initialize,
            lmdeploy.CONNECT: self._connect,
            lmdeploy.FREE: self._free,
            "/distserve/p2p_drop_connect": self._drop,
        }

    def _info(self, _: read.Fields) -> str:
        layout = self._layout
        sizes = {"tp_size": layout.tp, "ep_size": 1, "dp_size": 1, "pp_size": None, "dp_rank": 0}
        blocks = {"num_cpu_blocks": 0, "num_gpu_blocks": layout.blocks}
        return json.dumps({**sizes, "block_size": layout.block_tokens, **blocks})

    def _initialize(self, said: read.Fields) -> Mapping[str, Any]:
        read.text(said, "remote_engine_id")
        host, port = self.service_address
        bracketed = f"[{host}]" if ":" in host else host
        return {
            "status": lmdeploy.SUCCESS,
            "engine_endpoint_info": {"zmq_address": f"tcp://{bracketed}:{port}"},
            "kvtransfer_endpoint_info": [
                {"protocol": lmdeploy.RDMA, "endpoint_info": self.engine_id}
            ],
        }

    def _connect(self, said: read.Fields) -> Mapping[str, Any]:
        where = read.fields(said, "remote_engine_endpoint_info")
        host, port = read.endpoint(where, "zmq_address")
        listed = said.get("remote_kvtransfer_endpoint_info")
        if not isinstance(listed, list) or len(listed) != 1 or not isinstance(listed[0], dict):
            raise ValueError("remote_kvtransfer_endpoint_info must be a list with one object")
        life = read.text(listed[0], "endpoint_info")
        self._peers[read.text(said, "remote_engine_id")] = (host, port, life)
        while len(self._peers) > MOST_PEERS:
            del self._peers[next(iter(self._peers))]
        return {"status": lmdeploy.SUCCESS}

    def _free(self, said: read.Fields) -> Mapping[str, Any]:
        key = _key(read.integer(said, "remote_session_id", 0, MOST_SESSION))
        found = self._offers.abandon(key)
        if found is not None:
            request_id, offered = found
            if offered:
                self.core.release(request_id)
            else:
                self.core.abort(request_id)
        return {"status": "SUCCESS"}

    def _drop(self, said: read.Fields) -> Mapping[str, Any]:
        self._peers.pop(read.text(said, "remote_engine_id"), None)
        return {"success": True}


def _key(session: int) -> str:
    return f"session {session}"
