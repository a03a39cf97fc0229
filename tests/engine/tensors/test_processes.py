"""`pdgate engine --device`, as it is started: a prefill of two ranks and a decode, both on tensors, beside an engine on NumPy."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.engine.tensors.on_tensors import WHERE
from tests.support.processes import Child, child
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "pdgate.engine.cli", "--port", "0"]
ON_TENSORS = ("--device", WHERE, "--transfer", "tcp" if WHERE == "cpu" else "cuda-ipc")
READY = r"pdgate engine ready (\S+) \S+ \S+(?: kv=(\S+):(\d+))?"
ASKED = [
    {"prompt": "A prompt of some blocks, of which a fox jumps over a dog.", "temperature": 0},
    {"prompt": "Another one of some blocks, drawn with a seed.", "temperature": 1.0, "seed": 5},
]


class _Started:
    def __init__(self, process: Child) -> None:
        line = process.wait_for_line(READY)
        self.url, self.kv_host, self.kv_port = line[1], line[2], line[3]

    def says(self, body: dict[str, Any]) -> str:
        asked = json.dumps({"max_tokens": 24, "ignore_eos": True, **body}).encode()
        to = Request(f"{self.url}/v1/completions", asked, {"content-type": "application/json"})
        with urlopen(to, timeout=PATIENCE_SECONDS) as answer:
            said: str = json.load(answer)["choices"][0]["text"]
        return said

    def metric(self, name: str) -> float:
        with urlopen(f"{self.url}/metrics", timeout=PATIENCE_SECONDS) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def holds_nothing(self) -> bool:
        return self.metric("pdgate_engine_blocks_used") == 0


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[_Started, _Started, _Started]]:
    """Alone on NumPy; prefill; decode."""
    speaks = ("--pdd-protocol", "vllm-kvt", *ON_TENSORS)
    with ExitStack() as stack:
        started = [
            stack.enter_context(child([*COMMAND, *words]))
            for words in (
                (),
                ("--role", "prefill", "--tp", "2", *speaks),
                ("--role", "decode", *speaks),
            )
        ]
        alone, prefill, decode = map(_Started, started)
        yield alone, prefill, decode


@pytest.mark.parametrize("body", ASKED, ids=["greedy", "seeded"])
def test_what_decode_says_is_what_the_engine_on_numpy_says(
    body: dict[str, Any], engines: tuple[_Started, _Started, _Started]
) -> None:
    alone, prefill, decode = engines
    moved = decode.metric("pdgate_engine_kv_loaded_bytes")
    where = {
        "remote_host": prefill.kv_host,
        "remote_port": int(prefill.kv_port),
    }

    assert decode.says({**body, "kv_transfer_params": where}) == alone.says(body)
    assert decode.metric("pdgate_engine_kv_loaded_bytes") > moved
    for one in (prefill, decode):
        wait_until(one.holds_nothing, "no page in use")
