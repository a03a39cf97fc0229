"""migration_request of LMDeploy's DistServe, and the words by which two engines are joined before it.

    join        engine_info of both; p2p_initialize each, which says where it listens; p2p_connect each, to where the other does
    prefill     {with_cache, preserve_cache, session_id}     answers cache_block_ids, remote_token_ids
    decode      {migration_request: ...}                     goes on behind remote_token_id, and tells prefill when it has the KV
    release     free_cache, where decode has not

Engines know each other by their URLs. The session is a number of ours, so that it can be freed though prefill has not answered.

Source: InternLM/lmdeploy 1263d5c, lmdeploy/serve/proxy/proxy.py (chat_completions_v1), pytorch/disagg/conn/proxy_conn.py (connect),
conn/protocol.py, conn/engine_conn.py, config.py (the enums are numbered from 1), serve/openai/endpoints/distserve.py.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from pdgate.protocols.call import Json, Raw, parse_object, value
from pdgate.protocols.dialects import handle
from pdgate.protocols.errors import BadRequest, EngineFailed
from pdgate.protocols.instance import Instance

FIELD: Final = "migration_request"
ASK: Final[Json] = {"with_cache": True, "preserve_cache": True}
INFO, INITIALIZE, CONNECT, FREE = (
    f"/distserve/{name}" for name in ("engine_info", "p2p_initialize", "p2p_connect", "free_cache")
)
RDMA: Final = 2
ROCE: Final[Json] = {"with_gdr": True, "link_type": 2}
SUCCESS: Final = 1
SAME: Final = ("tp_size", "block_size")
"""Of the two configurations: decode takes prefill's blocks one by one, rank by rank, and dies where they do not fit."""


def session_of(attempt: str) -> int:
    """Far from the numbers that LMDeploy gives by itself, and no other attempt's."""
    return (1 << 47) + int.from_bytes(blake2b(attempt.encode(), digest_size=5).digest())


def unquoted(body: bytes) -> dict[str, Raw]:
    """engine_info comes as a text that is JSON. Raises BadRequest."""
    found = value({"it": Raw(body)}, "it")
    if not isinstance(found, str):
        raise BadRequest("no text")
    return parse_object(found.encode())


def differs(prefill: Json, decode: Json) -> str:
    """What of the two configurations would not fit; empty if it does."""
    return ", ".join(
        f"{name} is {value(prefill, name)} and {value(decode, name)}"
        for name in SAME
        if value(prefill, name) != value(decode, name)
    )


def introduced(here: Instance, peer: Instance, config: Json, of_peer: Json) -> Json:
    ids = {"local_engine_id": here.url, "remote_engine_id": peer.url}
    configs = {"local_engine_config": config, "remote_engine_config": of_peer}
    return {**ids, **configs, "protocol": RDMA, "rdma_config": ROCE}


def check(said: Json, by: Instance) -> None:
    """Raises EngineFailed if it did not do what it was asked."""
    if (status := value(said, "status", SUCCESS)) != SUCCESS:
        raise EngineFailed(f"cannot be joined: it answered status {status}", at=by.id)


def connected(peer: Instance, said: Json) -> Json:
    """`said`: by the peer, when it was initialized. Raises EngineFailed."""
    check(said, peer)
    names = ("engine_endpoint_info", "kvtransfer_endpoint_info")
    if missing := [name for name in names if name not in said]:
        raise EngineFailed(f"p2p_initialize answered without {', '.join(missing)}", at=peer.id)
    where = {f"remote_{name}": said[name] for name in names}
    return {"protocol": RDMA, "remote_engine_id": peer.url, **where}


def handed(reply: Json, prefill: Instance, session: int) -> Json | None:
    """What the gateway sends decode; None if the first token was the last. Raises EngineFailed."""
    if handle.word(handle.only_choice(reply), "finish_reason") != "length":
        return None
    blocks = reply.get("cache_block_ids")
    tokens = handle.word(reply, "remote_token_ids")
    # The blocks, of which a long prompt has thousands, stay raw.
    is_list = isinstance(blocks, Raw) and bytes(memoryview(blocks)[:1]) == b"["
    if not is_list or not isinstance(tokens, list) or not tokens:
        raise EngineFailed("prefill answered without cache_block_ids or remote_token_ids")
    peer: Mapping[str, object] = {"remote_engine_id": prefill.url, "remote_session_id": session}
    found = {"protocol": RDMA, **peer, "remote_block_ids": blocks, "remote_token_id": tokens[-1]}
    return {**found, "is_dummy_prefill": False}


def free(prefill: Instance, session: int) -> Json:
    return {"remote_engine_id": prefill.url, "remote_session_id": session}
