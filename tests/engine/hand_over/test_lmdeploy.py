"""Words by which a gateway joins two engines, frees a session, and parts them, as a prefill and a decode engine take them."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from pdgate.engine.connector import Keep, Load, Pages
from pdgate.engine.hand_over import lmdeploy as connector
from pdgate.protocols.call import encode, parse_object
from pdgate.protocols.dialects.lmdeploy import CONNECT, FREE, INFO, INITIALIZE, handed
from pdgate.protocols.errors import EngineFailed
from pdgate.protocols.instance import Instance, Role
from tests.support.engine_pair import P_URL, PROMPT, Pair, arrival, prefill
from tests.support.fake_core import SECONDS

DROP = "/distserve/p2p_drop_connect"


@pytest.fixture
def pair() -> Iterator[Pair]:
    with closing(Pair("lmdeploy", "tcp")) as found:
        yield found


def said(pair: Pair, path: str, **body: Any) -> Any:
    return pair.p.connector.routes()[path](body)


def test_an_engine_says_what_the_other_must_fit(pair: Pair) -> None:
    told = json.loads(said(pair, INFO))

    assert (told["tp_size"], told["block_size"], told["num_gpu_blocks"]) == (1, 4, 16)


def test_a_session_that_is_freed_gives_its_pages_up_and_is_not_read(pair: Pair) -> None:
    answer = prefill(pair)
    assert said(pair, FREE, remote_engine_id=P_URL, remote_session_id=1) == {"status": "SUCCESS"}
    assert pair.p.freed.get(timeout=SECONDS) == "p1"

    plan = pair.d.connector.plan(pair.to_decode(answer))
    assert isinstance(plan, Load)
    pair.d.connector.start("d1", plan, Pages((4, 5), len(PROMPT)), 0)
    assert "expired" in str(pair.d.results.get(timeout=SECONDS)[1])


def test_a_session_that_is_freed_while_it_is_computed_is_aborted(pair: Pair) -> None:
    assert isinstance(pair.p.connector.plan(pair.to_prefill()), Keep)
    said(pair, FREE, remote_session_id=1)

    assert pair.p.aborted.get(timeout=SECONDS) == "p1"


def test_a_session_that_is_not_there_is_no_error(pair: Pair) -> None:
    assert said(pair, FREE, remote_session_id=99) == {"status": "SUCCESS"}


def test_decode_fails_over_an_engine_that_it_was_not_joined_with(pair: Pair) -> None:
    """The request, and with a failure of the engine: the client is not to blame."""
    answer = prefill(pair)
    pair.d.connector.routes()[DROP]({"remote_engine_id": P_URL})

    plan = pair.d.connector.plan(pair.to_decode(answer))
    assert isinstance(plan, Load)
    pair.d.connector.start("d1", plan, Pages((4, 5), len(PROMPT)), 0)

    assert "not joined" in str(pair.d.results.get(timeout=SECONDS)[1])


def test_a_prefill_that_sampled_nothing_is_a_failure_of_prefill(pair: Pair) -> None:
    """The migration has to name a token, so the gateway sends none, nor would decode take it."""
    answer = prefill(pair, first_token=None)
    assert answer["remote_token_ids"] == []

    ended = {"choices": [{"index": 0, "finish_reason": "length"}], **answer}
    at = Instance("p", P_URL, Role.PREFILL, "lmdeploy")
    with pytest.raises(EngineFailed, match="remote_token_ids"):
        handed(parse_object(encode(ended)), at, 1)
    to_decode = pair.to_decode({**answer, "remote_token_ids": [None]})
    with pytest.raises(ValueError, match="remote_token_id must be"):
        pair.d.connector.plan(to_decode)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (INITIALIZE, {}),
        (CONNECT, {"remote_engine_id": "p"}),
        (CONNECT, {"remote_engine_id": "p", "remote_engine_endpoint_info": {"zmq_address": "x"}}),
        (
            CONNECT,
            {
                "remote_engine_id": "p",
                "remote_engine_endpoint_info": {"zmq_address": "tcp://h:1"},
                "remote_kvtransfer_endpoint_info": [],
            },
        ),
        (FREE, {"remote_session_id": "all"}),
        (FREE, {}),
        (DROP, {"remote_engine_id": 7}),
    ],
)
def test_words_that_mean_nothing_are_refused(pair: Pair, path: str, body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        said(pair, path, **body)


def test_peers_are_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connector, "MOST_PEERS", 3)
    where = {
        "remote_engine_endpoint_info": {"zmq_address": "tcp://h:1"},
        "remote_kvtransfer_endpoint_info": [{"endpoint_info": "e"}],
    }
    for n in range(10):
        said(pair, CONNECT, remote_engine_id=str(n), **where)

    assert isinstance(pair.p.connector, connector.LMDeployHandOver)
    assert list(pair.p.connector._peers) == ["7", "8", "9"]


@pytest.mark.parametrize("word", ["with_cache", "preserve_cache"])
def test_a_call_that_asks_for_half_of_it_keeps_nothing(pair: Pair, word: str) -> None:
    body: dict[str, Any] = {word: True, "session_id": 1}

    assert pair.p.connector.plan(arrival(**body)) is None
