"""KV tiers over real processes: what one engine has computed, prefill and decode engines started later do not compute."""

import sys
from contextlib import ExitStack
from pathlib import Path

from tests.end_to_end.reference.fleet import HTTP, Engine, Fleet, Pair, Route
from tests.end_to_end.reference.test_same_tokens import PROMPTS, said
from tests.support.waiting import wait_until

PROMPT = PROMPTS["many blocks"]
BLOCK_TOKENS = 16


def cached(engine: Engine) -> float:
    return engine.metric("vllm:prompt_tokens_by_source_total", source="local_cache_hit")


def hits(engine: Engine, medium: str) -> float:
    return engine.metric("pdgate_engine_kv_tier_hits_total", medium=medium)


def written(engine: Engine, medium: str) -> float:
    return engine.metric("pdgate_engine_kv_tier_written_total", medium=medium)


def complete(url: str, prompt: list[int]) -> None:
    answer = HTTP.post(f"{url}/v1/completions", json={"prompt": prompt, "max_tokens": 1})
    assert answer.status_code == 200, answer.text


def test_prefill_and_decode_find_what_an_engine_that_is_gone_has_computed(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The host's memory is emptied in between, as by a restart of the machine: disk has it."""
    host, disk = tmp_path / "host", tmp_path / "disk"
    tiers = ("--kv-tier", f"host={host}:64", "--kv-tier", f"disk={disk}:64")
    expected = said(fleet.single().url, PROMPT, False, True)
    with ExitStack() as running:
        first = Fleet(running, sys.executable).engine("plain", "plain", "shm", *tiers)
        assert said(first.url, PROMPT, False, True) == expected
        blocks = expected[2][0] // BLOCK_TOKENS
        assert blocks > 1
        wait_until(lambda: written(first, "disk") >= blocks, "the prompt's blocks on disk")
    for file in host.iterdir():
        file.unlink()

    with ExitStack() as running:
        own = Fleet(running, sys.executable)
        engines = [own.engine(role, "vllm-nixl", "tcp", *tiers) for role in ("prefill", "decode")]
        pair = Pair("vllm-nixl", *engines)
        with own.gateway(pair, Route("vllm-nixl", "batch")) as gateway:
            assert said(gateway.url, PROMPT, False, True) == expected

        usable = (expected[2][0] - 1) // BLOCK_TOKENS
        assert cached(pair.prefill) == usable * BLOCK_TOKENS
        # Prefill has brought them to the host's memory, if it was quicker than decode.
        assert hits(pair.decode, "disk") + hits(pair.decode, "host") == usable
        assert hits(pair.prefill, "disk") == usable


def test_a_changed_file_is_computed_again(fleet: Fleet, tmp_path: Path) -> None:
    tier = ("--kv-tier", f"disk={tmp_path}:64")
    expected = said(fleet.single().url, PROMPT, False, True)
    with ExitStack() as running:
        first = Fleet(running, sys.executable).engine("plain", "plain", "shm", *tier)
        said(first.url, PROMPT, False, True)
        blocks = expected[2][0] // BLOCK_TOKENS
        wait_until(lambda: written(first, "disk") >= blocks, "the prompt's blocks on disk")
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        file.write_bytes(data[:-8] + bytes(8))

    with ExitStack() as running:
        second = Fleet(running, sys.executable).engine("plain", "plain", "shm", *tier)

        assert said(second.url, PROMPT, False, True) == expected

        assert second.metric("pdgate_engine_kv_tier_broken_total", medium="disk") == 1
        assert hits(second, "disk") == 0


def test_a_call_goes_to_who_has_its_prefix_in_a_tier(tmp_path: Path) -> None:
    """Its pages have forgotten it, as its events say, and the other engine has nothing else to do."""
    prompts = [[first, *range(3, 258)] for first in range(60, 63)]
    with ExitStack() as running:
        own = Fleet(running, sys.executable)
        events = ("--kv-events-port", "0", "--blocks", "20")
        tier = ("--kv-tier", f"host={tmp_path / 'host'}:64")
        with_tier = own.engine("plain", "plain", "shm", *events, *tier)
        without = own.engine("plain", "plain", "shm", *events)
        for prompt in prompts:
            complete(with_tier.url, prompt)
        wait_until(lambda: written(with_tier, "host") >= 3 * 16, "the prompts' blocks in the tier")
        flags = ("--plain-policy", "prefix_then_load", "--kv-events", "ask")
        instances = [f"--instance=role=plain,url={one.url}" for one in (without, with_tier)]
        with own.serve(*flags, *instances) as gateway:
            said = Engine(gateway.url, "", gateway.process)
            wait_until(
                lambda: (
                    said.metric("pdgate_kv_event_tier_blocks", tier="host") >= 3 * 16
                    and said.metric("pdgate_kv_event_cached_blocks") >= 16
                ),
                "word of the blocks",
            )
            # The first of them, which is in no engine's pages any more.
            assert said.metric("pdgate_kv_event_cached_blocks") < 2 * 16
            complete(gateway.url, [*prompts[0], 1, 2])

        assert hits(with_tier, "host") == 16
        assert without.metric("vllm:prompt_tokens_total") == 0
