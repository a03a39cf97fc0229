"""kv_transfer_params of the Mooncake connectors: four generations are in the field.

    gen  to prefill                         to decode                              meet by
    a    ASK_A                              prefill's answer, word for word         request id
    b    SEND                               address of P's bootstrap server         request id
    c    SEND, header X-data-parallel-rank  bootstrap URL, engine id, dp rank       request id
    d    SEND + transfer_id                 bootstrap URL, engine id, transfer_id   transfer id

"a" is serial, the others start both legs together. P's engine ids (c, d) come from
GET <bootstrap>/query and change with every restart of P.

A transfer id is used once, retries included: a reused one gives wrong tokens and
leaves them in decode's prefix cache (measured on vLLM 0.32.0). P must stop by length,
or it drops its blocks and decode waits minutes for them: hence min_tokens 1 to P.

Source: a: Llumnix v1, MooncakeConnector; b, c: vLLM before transfer ids; d: vLLM 0.32.0,
distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py.
"""

from typing import Final

import msgspec

from pdgate.protocols.call import Json
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance

FIELD: Final = "kv_transfer_params"
BOOTSTRAP_PORT: Final = 8998
KEPT_SECONDS: Final = 480.0
"""How long P keeps blocks that no engine fetches: VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT."""
RANK_HEADER: Final = "x-data-parallel-rank"
ASK_A: Final[Json] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
SEND: Final[Json] = {"do_remote_decode": True, "do_remote_prefill": False}
RECEIVE: Final[Json] = {"do_remote_decode": False, "do_remote_prefill": True}


def bootstrap_url(prefill: Instance) -> str:
    """URL with its scheme: a bare "host:port" makes vLLM's decode answer 500."""
    host, port = prefill.kv_address(BOOTSTRAP_PORT)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def rank_of(prefill: Instance, turn: int) -> int:
    """The rank that a call is pinned to: the configured one, else each in turn.

    A call must be pinned where there are several, because decode is given which one it is.
    """
    if prefill.dp_rank is not None:
        return prefill.dp_rank
    ranks = [rank for rank, _ in prefill.engine_ids]
    return ranks[turn % len(ranks)] if ranks else 0


def engine_id(prefill: Instance, rank: int) -> str:
    for known, found in prefill.engine_ids:
        if known == rank:
            return found
    raise EngineFailed("the prefill engine's bootstrap server has not named it yet", at=prefill.id)


def receive_b(prefill: Instance) -> dict[str, object]:
    host, port = prefill.kv_address(BOOTSTRAP_PORT)
    return {**RECEIVE, "bootstrap_server_host": host, "bootstrap_server_port": port}


def receive_c(prefill: Instance, rank: int) -> dict[str, object]:
    return {
        **RECEIVE,
        "remote_bootstrap_addr": bootstrap_url(prefill),
        "remote_engine_id": engine_id(prefill, rank),
        "remote_dp_rank": rank,
    }


def send_d(transfer_id: str) -> dict[str, object]:
    return {**SEND, "transfer_id": transfer_id}


def receive_d(prefill: Instance, rank: int, transfer_id: str) -> dict[str, object]:
    return {
        **RECEIVE,
        "transfer_id": transfer_id,
        "remote_engine_id": engine_id(prefill, rank),
        "remote_bootstrap_addr": bootstrap_url(prefill),
    }


class _Rank(msgspec.Struct):
    engine_id: str


def engine_ids(query_answer: object) -> tuple[tuple[int, str], ...]:
    """What GET <bootstrap>/query says: rank -> engine id. Raises ValueError.

    {"0": {"engine_id": "...", "worker_addr": {"<tp>": {"<pp>": "tcp://host:port"}}}}
    """
    try:
        ranks = msgspec.convert(query_answer, dict[int, _Rank], strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(f"not a bootstrap server's answer: {error}") from None
    return tuple(sorted((rank, entry.engine_id) for rank, entry in ranks.items()))
