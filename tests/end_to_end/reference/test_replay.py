"""A trace through a real gateway to real engines: right answers, and prefixes found again."""

import json
import sys
from pathlib import Path

import pytest

from tests.end_to_end.reference.fleet import Fleet, Route
from tests.support.processes import child

CALLS, BLOCK = 24, 16

pytestmark = pytest.mark.slow


def test_a_trace_is_answered_and_its_prefixes_are_found_again(fleet: Fleet, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    # Half of the calls have a prompt of which another has the first two blocks.
    lines = [
        {
            "timestamp": 20 * number,
            "input_length": 3 * 512,
            "output_length": 6,
            "hash_ids": [number // 2, 1000 + number // 2, 2000 + number],
        }
        for number in range(CALLS)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    pair = fleet.pair("vllm-nixl", "shm")
    found = "vllm:prompt_tokens_by_source_total"
    before = pair.prefill.metric(found, source="local_cache_hit")
    with fleet.gateway(pair, Route("vllm-nixl", "staged")) as gateway:
        words = ("--trace", trace, "--url", gateway.url, "--block-tokens", BLOCK, "--json")
        more = ("--out", tmp_path / "out", "--concurrency-limit", "2")
        command = [sys.executable, "-m", "pdgate", "replay", *map(str, (*words, *more))]
        with child(command, name="replay", log=tmp_path / "log") as running:
            assert running.wait_for_end(120) == 0, running.tail()

    told = json.loads((tmp_path / "out/figures.json").read_text())
    assert (told["calls"], told["lost"]) == (CALLS, {})
    assert told["answer_tokens"] == 6 * CALLS
    # Token ids, so what was asked for is what the engine read.
    assert told["prompt_tokens"] == 3 * BLOCK * CALLS
    assert 0 < told["ttft"]["p50"] < told["whole"]["p50"]
    hits = pair.prefill.metric(found, source="local_cache_hit") - before
    assert hits >= BLOCK * CALLS // 2
    assert len((tmp_path / "out/calls.jsonl").read_text().splitlines()) == CALLS
    assert "<svg" in (tmp_path / "out/index.html").read_text()
