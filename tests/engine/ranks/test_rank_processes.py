"""The end of an engine of several ranks, with all of its processes: nothing of it stays behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests.support.processes import child
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

RANKED = ("--role", "prefill", "--pdd-protocol", "vllm-kvt", "--tp", "2", "--pp", "2")
COMMAND = [sys.executable, "-m", "pdgate.engine.cli", "--port", "0", *RANKED]
HELD_UP = """
import sys, threading
from multiprocessing.connection import Connection
from pdgate.engine.ranks.process import FarCore

threading.Thread(target=FarCore(Connection(int(sys.argv[1]))).beat, daemon=True).start()
threading.Event().wait()
"""
"""A rank whose connector never comes back from an order."""


def ranks_of(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in children]


def runs(pid: int) -> bool:
    """A zombie has ended: only its new parent has not asked after it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_no_process_stays_behind_an_engine_that_is_killed() -> None:
    with child(COMMAND) as engine:
        engine.wait_for_line("pdgate engine ready")
        ranks = ranks_of(engine.pid)
        assert len(ranks) == 4
        movers = [mover for rank in ranks for mover in ranks_of(rank)]
        assert len(movers) == 4

        os.kill(engine.pid, signal.SIGKILL)

        assert engine.wait_for_end() == -signal.SIGKILL
        wait_until(lambda: not any(map(runs, ranks + movers)), "the end of ranks and movers")


def completion(url: str, *, stream: bool) -> Any:
    """An answer that takes longer than the test."""
    body = {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": stream}
    asked = Request(f"{url}/v1/completions", json.dumps(body).encode())
    asked.add_header("content-type", "application/json")
    return urlopen(asked, timeout=PATIENCE_SECONDS)


def test_an_engine_whose_rank_is_killed_answers_its_calls_and_ends_with_a_sentence() -> None:
    with (
        child([*COMMAND, "--min-itl-ms", "100"]) as engine,
        ThreadPoolExecutor(1) as pool,
    ):
        url = engine.wait_for_line(r"pdgate engine ready (\S+)")[1]
        ranks = ranks_of(engine.pid)
        whole = pool.submit(completion, url, stream=False)
        with completion(url, stream=True) as stream:
            assert stream.readline().startswith(b"data: ")

            os.kill(ranks[2], signal.SIGKILL)

            said = stream.read()
        assert b"error" in said
        assert b"[DONE]" not in said.split(b"error")[0]
        with pytest.raises(HTTPError) as refused, whole.result():
            pass
        with refused.value as answer:
            assert answer.code == 500
            assert "the engine core died" in json.load(answer)["error"]["message"]

        assert engine.wait_for_end() == 1
        why = f"rank 2 (pid {ranks[2]}) has ended: killed by signal 9"
        assert f"the engine has ended: {why}" in engine.tail()
        assert not any(map(runs, ranks))


def test_a_kv_port_that_is_taken_ends_the_start_by_the_ranks_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with child([*COMMAND, "--kv-port", port]) as engine:
            assert engine.wait_for_end() == 1
            assert "could not start: rank 0: [Errno 98] Address already in use" in engine.tail()


def test_a_rank_that_is_held_up_ends_with_its_engine() -> None:
    ours, theirs = socket.socketpair()
    rank = subprocess.Popen(
        [sys.executable, "-P", "-c", HELD_UP, str(theirs.fileno())], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    try:
        assert ours.recv(1), "a sign of life"
        ours.close()

        assert rank.wait(PATIENCE_SECONDS) == 0
    finally:
        rank.kill()
        rank.wait()
