"""Control of stock vLLM: other weights under load, pauses, and caches that are emptied.

Its sleep mode gives no memory back on a CPU, and its ways to send weights (NCCL, IPC) need GPUs; its workers read other
weights from a folder (`reload_weights` by /collective_rpc).
"""

import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any, Final

import httpx2
import pytest
from safetensors.numpy import load_file, save_file

from tests.end_to_end.vllm.asking import ASK_SECONDS, client, complete, prompt
from tests.end_to_end.vllm.engines import NIXL, Engine, Fleet, Pair, ready
from tests.end_to_end.vllm.gateway import Gateway, gateway_over
from tests.support.ports import free_port
from tests.support.waiting import wait_until

TOKEN: Final = "correct-horse-battery-staple"
KNOWN: Final = {"authorization": f"Bearer {TOKEN}"}
DEVELOPMENT: Final = {"VLLM_SERVER_DEV_MODE": "1"}
CALLERS: Final = 3
PROMPTS: Final = [
    prompt(100, "what all begin with") + prompt(10, f"control {number}") for number in range(4)
]
"""They begin alike, so that KV of old weights would be met again."""
LONG_TOKENS: Final = 1000


@dataclass(frozen=True, slots=True)
class Site:
    """
    Attributes:
        single: An engine by itself, for what an answer has to be.
        folders: Of two checkpoints; engines have the first one's weights when they start.
    """

    gateway: Gateway
    pair: Pair
    single: Engine
    folders: Sequence[Path]

    def tell(self, target: str, body: Any = None, *, method: str = "POST") -> dict[str, Any]:
        answer = httpx2.request(
            method, f"{self.gateway.url}{target}", json=body, headers=KNOWN, timeout=ASK_SECONDS
        )
        said: dict[str, Any] = answer.json()
        assert answer.status_code == 200, said
        assert [one["ok"] for one in said["engines"]] == [True, True], said
        return said

    def expected(self, folder: Path) -> list[list[int]]:
        """What a single engine with those weights says to all prompts."""
        answer = httpx2.post(
            f"{self.single.url}/collective_rpc", json=reload(folder), timeout=ASK_SECONDS
        )
        assert answer.status_code == 200, answer.text
        httpx2.post(f"{self.single.url}/reset_prefix_cache", timeout=ASK_SECONDS)
        return [tokens(self.single.url, asked) for asked in PROMPTS]


def reload(folder: Path) -> dict[str, Any]:
    return {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}


def tokens(url: str, asked: list[int]) -> list[int]:
    with client(url) as http:
        return complete(http, asked).token_ids


def other_weights(model: Path, folder: Path) -> Path:
    """The same model with its vocabulary the other way round, as far as that is written by `lm_head`."""
    shutil.copytree(model, folder)
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        save_file(
            {name: -tensor if "lm_head" in name else tensor for name, tensor in tensors.items()},
            file,
        )
    return folder


@pytest.fixture(scope="module")
def site(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("control")
    file = folder / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    flags = ("--control", "--admin-token-file", str(file))
    with ExitStack() as stack:
        port = free_port()
        starting = fleet.start(stack, "control-single", port, env=DEVELOPMENT)
        pair = Pair(fleet, replace(NIXL, name="nixl-control", more_env=DEVELOPMENT), stack)
        gateway = stack.enter_context(gateway_over(pair, "batch", fleet.logs, flags=flags))
        folders = fleet.model, other_weights(fleet.model, folder / "other")
        yield Site(gateway, pair, ready(starting, port), folders)


def test_calls_under_load_meet_the_weights_of_before_or_of_after_and_never_both(
    site: Site,
) -> None:
    before, after = (site.expected(folder) for folder in site.folders)
    assert all(one != other for one, other in zip(before, after, strict=True))
    end, met = Event(), [0, 0]

    def call(caller: int) -> None:
        number = caller
        while not end.is_set():
            found = tokens(site.gateway.url, PROMPTS[number % len(PROMPTS)])
            which = 0 if found == before[number % len(PROMPTS)] else 1
            assert found == (before, after)[which][number % len(PROMPTS)], "a mixture"
            met[which] += 1
            number += 1

    with ThreadPoolExecutor(CALLERS) as callers:
        calling = [callers.submit(call, number) for number in range(CALLERS)]
        try:
            wait_until(lambda: met[0] > 2 * CALLERS, "calls that met the weights of before")
            said = site.tell("/collective_rpc", reload(site.folders[1]))
            assert [one["ok"] for one in said["flushed"]] == [True, True], said
            assert (said["held"], said["left_out"]) == ([], [])
            seen = met[1]
            wait_until(lambda: met[1] > seen + 2 * CALLERS, "calls that met the new ones")
        finally:
            end.set()
        for each in calling:
            each.result()
    assert [tokens(site.gateway.url, asked) for asked in PROMPTS] == after
    site.tell("/collective_rpc", reload(site.folders[0]))
    assert [tokens(site.gateway.url, asked) for asked in PROMPTS] == before


@pytest.mark.parametrize("stop", ["/pause?mode=wait", "/sleep?level=1"])
def test_calls_wait_while_engines_are_stopped(site: Site, stop: str) -> None:
    """Of a sleep on a CPU all is as with a GPU but the memory."""
    before = site.expected(site.folders[0])
    asks, goes_on = ("/is_paused", "/resume") if "pause" in stop else ("/is_sleeping", "/wake_up")
    assert site.tell(stop)["held"] != []
    said = site.tell(asks, method="GET")
    assert [list(one["body"].values()) for one in said["engines"]] == [[True], [True]]
    with ThreadPoolExecutor(1) as callers:
        waiting = callers.submit(tokens, site.gateway.url, PROMPTS[0])
        metrics = f"{site.gateway.url}/metrics"
        wait_until(lambda: "\npdgate_calls_held 1" in httpx2.get(metrics).text, "a call that waits")
        assert not waiting.done()
        assert site.tell(goes_on)["held"] == []
        assert waiting.result(ASK_SECONDS) == before[0]


def test_a_pause_that_keeps_calls_lets_them_go_on_where_they_were(site: Site) -> None:
    """An engine that stands still because it was told to is not given up as frozen."""
    with client(site.single.url) as http:
        expected = complete(http, PROMPTS[1], max_tokens=LONG_TOKENS).token_ids
    begun = Event()

    def stream() -> list[int]:
        with client(site.gateway.url) as http:
            found: list[int] = []
            for chunk in http.completions.create(
                model="tiny",
                prompt=PROMPTS[1],
                max_tokens=LONG_TOKENS,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True, "return_token_ids": True},
            ):
                found += (chunk.choices[0].model_extra or {}).get("token_ids") or []
                begun.set()
            return found

    with ThreadPoolExecutor(1) as callers:
        streaming = callers.submit(stream)
        assert begun.wait(ASK_SECONDS)
        assert "frozen" in site.tell("/pause?mode=keep")["held"]
        still = not streaming.done()
        # As long as an optimizer's step may take, and longer than an engine may be silent.
        time.sleep(20)
        assert site.tell("/resume")["held"] == []
        found = streaming.result(ASK_SECONDS)
    assert still, "it had ended before the pause"
    assert found == expected


def test_an_engine_that_holds_blocks_empties_its_caches_once_it_can(site: Site) -> None:
    """A prompt that no decode engine fetches is kept by prefill until its lease is over."""
    kept = {
        "model": "tiny",
        "prompt": prompt(64, "kept"),
        "max_tokens": 1,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    said = httpx2.post(f"{site.pair.prefill.url}/v1/completions", json=kept, timeout=ASK_SECONDS)
    assert said.json()["kv_transfer_params"]["remote_block_ids"]
    flush = f"{site.pair.prefill.url}/reset_prefix_cache"
    assert httpx2.post(flush, timeout=ASK_SECONDS).json() == {"success": False}

    told = site.tell("/collective_rpc", reload(site.folders[0]))

    assert [one["body"] for one in told["flushed"]] == [{"success": True}] * 2
    assert told["left_out"] == []


def test_all_engines_are_asked(site: Site) -> None:
    for path, field in (("/get_world_size", "world_size"), ("/weight_info", "weight_version")):
        said = site.tell(path, method="GET")
        assert [list(one["body"]) for one in said["engines"]] == [[field]] * 2
    said = site.tell("/weight_checker", {"action": "checksum"})
    one, other = (engine["body"]["checksums"] for engine in said["engines"])
    assert one == other
    assert site.tell("/reset_prefix_cache?reset_external=true")["left_out"] == []
    assert site.tell("/reset_mm_cache")["held"] == []
