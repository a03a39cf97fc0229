"""An engine that is asked to end leaves nobody without the KV that was promised."""

import contextlib
import signal
import sys
from collections.abc import Iterator

import httpx2
import pytest

from pdgate.protocols.call import COMPLETIONS
from tests.support.processes import Child, child
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

READY = r"pdgate engine ready http://127\.0\.0\.1:(\d+) \S+ \S+ kv=(\S+):(\d+)"
NAMED = {"x-request-id": "call-1"}
ASKED = {"prompt": "The quick brown fox " * 8, "max_tokens": 8, "temperature": 0}
KEEP = {**ASKED, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}


@contextlib.contextmanager
def engine(
    role: str, protocol: str = "vllm-nixl", lease_seconds: float = 5 * PATIENCE_SECONDS
) -> Iterator[tuple[Child, httpx2.Client]]:
    """By default it keeps blocks for longer than a test waits for its end."""
    options = ("--lease-seconds", str(lease_seconds))
    speak = ("--pdd-protocol", protocol, "--transfer", "tcp")
    command = [sys.executable, "-m", "pdgate.engine.cli", "--port", "0", "--role", role]
    with child([*command, *speak, *options]) as process:
        port = process.wait_for_line(READY).group(1)
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS) as http:
            yield process, http


def test_kv_that_decode_was_told_of_is_still_there_when_it_comes() -> None:
    with engine("prefill") as (leaver, prefill), engine("decode") as (_, decode):
        kept = prefill.post(COMPLETIONS, json=KEEP).json()["kv_transfer_params"]

        leaver.signal(signal.SIGTERM)
        leaver.wait_for_line("pages that others are to have")
        answer = decode.post(COMPLETIONS, json={**ASKED, "kv_transfer_params": kept})

        assert answer.status_code == 200
        loaded = 'vllm:prompt_tokens_by_source_total{model_name="pdgate-tiny",source="%s"} %s'
        assert loaded % ("external_kv_transfer", 160.0) in decode.get("/metrics").text
        assert leaver.wait_for_end() == 0


def test_kv_that_decode_asks_to_be_written_still_is() -> None:
    """vllm-kvt, staged: prefill holds the pages until decode asks, and then writes them."""
    with (
        engine("prefill", protocol="vllm-kvt") as (leaver, prefill),
        engine("decode", protocol="vllm-kvt") as (_, decode),
    ):
        host, port = leaver.wait_for_line(READY).group(2, 3)
        held = {"do_remote_prefill": True, "remote_host": host, "remote_port": int(port)}
        assert prefill.post(COMPLETIONS, json=KEEP, headers=NAMED).status_code == 200

        leaver.signal(signal.SIGTERM)
        leaver.wait_for_line("pages that others are to have")
        answer = decode.post(
            COMPLETIONS, json={**ASKED, "kv_transfer_params": held}, headers=NAMED
        ).json()

        # "abort" is how this protocol says that the KV did not come.
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")
        assert leaver.wait_for_end() == 0


def test_kv_that_nobody_comes_for_is_waited_for_no_longer_than_its_lease() -> None:
    with engine("prefill", lease_seconds=1) as (leaver, prefill):
        assert prefill.post(COMPLETIONS, json=KEEP).status_code == 200

        leaver.signal(signal.SIGTERM)

        assert leaver.wait_for_end() == 0
        assert "still in use" not in leaver.tail()


def test_whoever_asks_twice_is_in_a_hurry() -> None:
    with engine("prefill") as (leaver, prefill):
        assert prefill.post(COMPLETIONS, json=KEEP).status_code == 200

        leaver.signal(signal.SIGINT)
        leaver.wait_for_line("pages that others are to have")
        leaver.signal(signal.SIGINT)

        assert leaver.wait_for_end() == 0
