"""The engine as a process."""

import contextlib
import json
import re
import signal
import socket
import sys
from collections.abc import Iterator

import httpx2
import pytest

from pdgate.protocols.call import COMPLETIONS
from tests.support.processes import Child, child
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

READY = r"pdgate engine ready http://127\.0\.0\.1:(\d+) role=(\w+) protocol=([\w-]+)"
ENDLESS = {"prompt": "Hello", "max_tokens": 1500, "ignore_eos": True}


@contextlib.contextmanager
def engine(*options: str) -> Iterator[tuple[Child, httpx2.Client]]:
    command = [sys.executable, "-m", "pdgate.engine.cli", "--port", "0", *options]
    with child(command) as process:
        port = process.wait_for_line(READY).group(1)
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as http:
            yield process, http


def metric(http: httpx2.Client, name: str) -> float:
    text = http.get("/metrics").text
    found = re.search(rf"^{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found.group(1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_when_it_is_ready_and_ends_well_when_asked(number: signal.Signals) -> None:
    with engine() as (process, http):
        assert http.get("/health").status_code == 200
        process.signal(number)

        assert process.wait_for_end() == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_what_it_had(stream: bool) -> None:
    with engine("--min-itl-ms", "20") as (process, http):
        body = json.dumps({**ENDLESS, "stream": stream}).encode()
        with socket.create_connection((http.base_url.host, http.base_url.port or 0)) as client:
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            process.wait_until(
                lambda: metric(http, "vllm:num_requests_running") == 1 or None, "a running request"
            )

        process.wait_until(
            lambda: metric(http, "vllm:num_requests_running") == 0 or None, "no running request"
        )
        assert metric(http, "pdgate_engine_blocks_used") == 0


def test_answers_under_way_end_in_order_when_it_stops() -> None:
    """The stream says that it was aborted, and then ends as every stream does."""
    options = ("--min-itl-ms", "20", "--shutdown-timeout", "0.1")
    with engine(*options) as (process, http):
        with http.stream("POST", COMPLETIONS, json={**ENDLESS, "stream": True}) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            process.signal(signal.SIGTERM)
            said = [line for line in lines if line]

        assert json.loads(said[-2].removeprefix("data: "))["choices"][0]["finish_reason"] == "abort"
        assert said[-1] == "data: [DONE]"
        assert process.wait_for_end() == 0


def test_it_dies_at_the_request_it_was_told_to() -> None:
    with engine("--die-after", "1") as (process, http):
        assert http.post(COMPLETIONS, json={"prompt": "x"}).status_code == 200
        with pytest.raises(httpx2.TransportError):
            http.post(COMPLETIONS, json={"prompt": "x"})

        assert process.wait_for_end() == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--tp", "3"), "4 heads cannot be split evenly over tp 3"),
        (
            ("--role", "prefill", "--pdd-protocol", "neuron", "--pp", "2"),
            "neuron knows no pipeline stages: pp 2",
        ),
        (
            (
                *("--role", "prefill", "--pdd-protocol", "vllm-kvt", "--tp", "2"),
                *("--transfer-option", "port=18400"),
            ),
            "each of 2 ranks listens at a place of its own: leave the transfer option port=18400 out",
        ),
        (
            ("--role", "prefill", "--pdd-protocol", "sglang", "--transfer-option", "speed=9"),
            "transfer backend 'tcp' has no option 'speed'",
        ),
    ],
)
def test_wrong_settings_are_said_at_the_start(options: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "pdgate.engine.cli", *options]
    with child(command) as process:
        assert process.wait_for_end() == 1
        assert said in process.tail()


def test_a_directory_that_is_not_there_is_said_in_a_sentence() -> None:
    command = [
        sys.executable,
        "-m",
        "pdgate.engine.cli",
        "--port",
        "0",
        "--directory",
        "kubernetes",
    ]
    with child(command, env={"KUBERNETES_SERVICE_HOST": ""}) as process:
        assert process.wait_for_end() == 2
        assert "cannot be listed: this is no pod" in process.tail()
        assert "Traceback" not in process.tail()


def test_a_pair_answers_as_one_engine_does() -> None:
    """Two processes, KV pulled by the NIXL-like protocol; decode computes one token itself."""
    asked = {"prompt": "The quick brown fox " * 8, "max_tokens": 24, "temperature": 0}
    speak = ("--pdd-protocol", "vllm-nixl", "--transfer", "tcp", "--transfer-option", "port=0")
    with (
        engine("--role", "prefill", *speak) as (_, prefill),
        engine("--role", "decode", *speak) as (_, decode),
        engine() as (_, single),
    ):
        kept = prefill.post(
            COMPLETIONS,
            json={**asked, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}},
        ).json()
        answer = decode.post(
            COMPLETIONS, json={**asked, "kv_transfer_params": kept["kv_transfer_params"]}
        ).json()
        right = single.post(COMPLETIONS, json=asked).json()

        computed = 'vllm:prompt_tokens_by_source_total{model_name="pdgate-tiny",source="%s"} %s'
        text = decode.get("/metrics").text

    assert answer["choices"][0]["text"] == right["choices"][0]["text"]
    assert computed % ("local_compute", 1.0) in text
    assert computed % ("external_kv_transfer", 160.0) in text
