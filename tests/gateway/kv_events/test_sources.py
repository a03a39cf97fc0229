"""Where to listen, by what the operator wrote or the engine says."""

import json
from typing import Any

import pytest

from pdgate.gateway.kv_events.sources import (
    BadSource,
    EventSource,
    check_template,
    from_answer,
    from_template,
)
from pdgate.protocols.instance import Instance, Role


def engine(url: str = "http://10.0.0.1:8000", **more: Any) -> Instance:
    return Instance("p0", url, Role.PREFILL, "vllm-nixl", **more)


def answer(**ranks: Any) -> bytes:
    return json.dumps({name.removeprefix("r"): config for name, config in ranks.items()}).encode()


def test_each_rank_has_the_next_port() -> None:
    sources = from_template("tcp://{host}:5557", "tcp://{host}:5657", "kv", engine(dp_size=2))

    assert sources == {
        0: EventSource("tcp://10.0.0.1:5557", "tcp://10.0.0.1:5657", "kv"),
        1: EventSource("tcp://10.0.0.1:5558", "tcp://10.0.0.1:5658", "kv"),
    }


def test_an_instance_that_is_one_rank_has_the_port_of_that_rank() -> None:
    sources = from_template("tcp://*:5557", "", "", engine(dp_rank=3, dp_size=4))

    assert sources == {3: EventSource("tcp://10.0.0.1:5560")}


def test_a_wildcard_is_the_host_of_the_url() -> None:
    config = {"endpoint": "tcp://*:5557", "replay_endpoint": None, "topic": "kv@tiny"}

    assert from_answer(answer(r0=config), engine()) == {
        0: EventSource("tcp://10.0.0.1:5557", "", "kv@tiny")
    }
    assert from_answer(answer(r0=config), engine("http://[fd00::1]:8000")) == {
        0: EventSource("tcp://[fd00::1]:5557", "", "kv@tiny")
    }


def test_an_engine_may_publish_elsewhere_than_it_serves() -> None:
    config = {"endpoint": "tcp://10.9.9.9:31557", "replay_endpoint": "tcp://10.9.9.9:31558"}

    assert from_answer(answer(r0=config, r1=config), engine(dp_rank=1)) == {
        1: EventSource("tcp://10.9.9.9:31557", "tcp://10.9.9.9:31558")
    }


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        answer(r0=None),
        answer(rx={}),
        answer(r0={}),
        answer(r0={"endpoint": 5557}),
        answer(r0={"endpoint": "inproc://cache"}),
        answer(r0={"endpoint": "tcp://*"}),
        answer(r0={"endpoint": "tcp://*:0"}),
        answer(r0={"endpoint": "tcp://*:99999"}),
        answer(r0={"endpoint": "tcp://*:1", "replay_endpoint": 7}),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(body: bytes) -> None:
    with pytest.raises(BadSource):
        from_answer(body, engine())


def test_a_template_is_checked_when_it_is_configured() -> None:
    for good in ("", "ask", "tcp://{host}:5557", "tcp://*:5557"):
        assert check_template(good) == good
    for bad in ("5557", "tcp://{host}", "udp://{host}:5557", "tcp://{host}:0"):
        with pytest.raises(ValueError, match="not an endpoint"):
            check_template(bad)
