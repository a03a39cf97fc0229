"""The demo: what it refuses, and what it tells."""

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from pdgate.lab.demo import plan
from pdgate.lab.demo.plan import BadPlan, DemoPlan
from pdgate.lab.demo.run import DemoEngine
from pdgate.lab.demo.story import KV_BYTES, counter, curl, told, was_handed_over
from pdgate.lab.processes import own_redis


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        (DemoPlan(protocol="nixl"), "no protocol is called 'nixl'; there are"),
        (DemoPlan(protocol="plain"), "plain hands no KV over"),
        (
            DemoPlan(protocol="sglang", mode="staged"),
            "sglang cannot do staged scheduling: both legs",
        ),
        (DemoPlan(prefills=0), "--prefills 0: it takes at least one engine of each role"),
        (DemoPlan(decodes=-1), "--decodes -1: it takes at least one engine of each role"),
        (
            DemoPlan(transfer="rdma"),
            "--transfer rdma: there is no such backend; there are cuda-ipc, mooncake,",
        ),
        (DemoPlan(model=Path("nowhere")), "--model nowhere: there is no config.json"),
        (DemoPlan(port=70000), "--port 70000 cannot be had"),
        (DemoPlan(queue="redis://127.0.0.1:6379/0"), "--queue: vllm-nixl takes none"),
        (DemoPlan(protocol="decode-first", queue="memory://it"), "can share a Redis only"),
        (
            DemoPlan(protocol="decode-first", queue="redis"),
            "--queue: a queue is redis://host:port/",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_before_anything_starts(
    plan: DemoPlan, sentence: str
) -> None:
    with pytest.raises(BadPlan) as error:
        plan.check()

    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("lacks", "sentence"),
    [
        ("redis", r"needs one more package: pip install '\.\[redis\]'"),
        ("redis-server", "install redis-server, or name a Redis with --queue redis://"),
    ],
)
def test_without_a_queue_that_engines_share_there_is_no_decode_first(
    lacks: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def there(name: str) -> str | None:
        return None if name == lacks else name

    monkeypatch.setattr(plan, "find_spec", there)
    monkeypatch.setattr(shutil, "which", there)

    with pytest.raises(BadPlan, match=sentence):
        DemoPlan(protocol="decode-first").check()


def test_engines_and_their_queue_are_told_of_each_other() -> None:
    url, command = own_redis()

    assert url == f"redis://127.0.0.1:{command[command.index('--port') + 1]}/0"
    told = DemoPlan(protocol="decode-first", queue=url).engine_command("decode")
    assert told[told.index("--queue") + 1] == url


def test_a_port_in_use_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        with pytest.raises(BadPlan, match=r"cannot be had: .* in use"):
            DemoPlan(port=taken.getsockname()[1]).check()


def test_the_ready_line_of_an_engine_becomes_its_flag() -> None:
    line = "pdgate engine ready http://127.0.0.1:7 role=prefill protocol=vllm-kvt kv=127.0.0.1:8"

    engine = DemoEngine.from_line("prefill-0", line)

    assert engine.as_flag() == "id=prefill-0,role=prefill,url=http://127.0.0.1:7,kv=127.0.0.1:8"


CALL: dict[str, Any] = {
    "protocol": "vllm-nixl",
    "mode": "batch",
    "path": "disaggregated",
    "kv": "handed_over",
    "attempts": [
        {"legs": [{"role": "prefill", "instance": "prefill-0", "outcome": "engine_failed"}]},
        {
            "legs": [
                {"role": "prefill", "instance": "prefill-1", "outcome": "ok"},
                {"role": "decode", "instance": "decode-0", "outcome": "ok"},
            ]
        },
    ],
    "stages_ms": {"prefill": 12.34, "total": 56.78},
}


def test_the_story_names_who_answered_in_the_end() -> None:
    assert told(CALL, 49152, ["prefill-1", "decode-0"]) == [
        "served by  prefill-1 (prefill), decode-0 (decode)",
        "protocol   vllm-nixl, batch scheduling, disaggregated",
        "KV moved   49,152 bytes",
        "  prefill              12.3 ms",
        "  the whole call       56.8 ms",
    ]


def test_an_engine_that_decode_asked_is_named_too() -> None:
    legs = [{"role": "decode", "instance": "decode-0", "outcome": "ok"}]

    (served, *_) = told({**CALL, "attempts": [{"legs": legs}]}, 1, ["decode-0", "prefill-1"])

    assert served == "served by  prefill-1 (asked by decode), decode-0 (decode)"


def test_prefill_is_named_first() -> None:
    legs = [{"role": role, "instance": f"{role}-0"} for role in ("decode", "prefill")]

    (served, *_) = told({**CALL, "attempts": [{"legs": legs}]}, 1, [])

    assert served == "served by  prefill-0 (prefill), decode-0 (decode)"


def test_a_call_that_one_engine_served_was_not_handed_over() -> None:
    assert was_handed_over(CALL)
    assert not was_handed_over({**CALL, "path": "local"})
    assert not was_handed_over({**CALL, "kv": "none"})


def test_a_counter_is_summed_over_its_labels() -> None:
    page = (
        f"# HELP {KV_BYTES} x\n# TYPE {KV_BYTES} counter\n"
        f'{KV_BYTES}{{peer="a"}} 1024\n{KV_BYTES}{{peer="b"}} 1e3\n'
        f"{KV_BYTES}_created 1.7e9\n"
    )

    assert counter(page, KV_BYTES) == 2024


def test_the_curl_line_survives_a_shell() -> None:
    line = curl("http://127.0.0.1:1", "it's", "what's $HOME?")

    assert "what'\"'\"'s $HOME?" in line
