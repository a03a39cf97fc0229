"""The mock engine and the load generator, in C, by themselves: right answers pass, others do not."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.processes import child
from tests.support.waiting import PATIENCE_SECONDS

if TYPE_CHECKING:
    from benchmarks.gateway.fleet import Engine

# The benchmarks are not installed, and so are imported where a test needs them.
pytestmark = pytest.mark.source

SWAPPED, SHORT, DISORDERED, CUT_OFF, UNDONE, REFUSED = range(1, 7)
"""How engine.c can lie."""


@dataclass(frozen=True, slots=True)
class Load:
    """Asks the engine itself, without a gateway."""

    program: Path
    engine: "Engine"

    def ask(self, words: str, **settings: int) -> str:
        self.engine.set({"wrong": 0, **settings})
        port = self.engine.url.rpartition(":")[2]
        command = [str(self.program), "--port", port, *words.split()]
        ran = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
        )
        return ran.stdout


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    from benchmarks.gateway.fleet import Engine
    from benchmarks.gateway.programs import compiled

    programs = compiled(tmp_path_factory.mktemp("programs"))
    with child([str(programs.engine)], name="engine") as engine:
        port = engine.wait_for_line(r"^(\d+)$")[1]
        yield Load(programs.load, Engine(f"http://127.0.0.1:{port}", engine.pid))


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ("", {}),
        ("--stream", {}),
        ("--stream", {"pace_us": 200}),
        ("--stream", {"pace_us": 500, "in_step": 1}),
        ("--path /v1/chat/completions --stream --body-bytes 8192", {}),
        ("--path /v1/chat/completions --body-bytes 500000 --image-bytes 400000", {}),
        ("--think-us 100 --idle 20", {}),
    ],
)
def test_right_answers_pass(load: Load, words: str, settings: dict[str, int]) -> None:
    from benchmarks.gateway.outcome import parse

    line = load.ask(f"--clients 3 --calls 10 --warm 2 {words}", **settings)

    outcome = parse(line, idle=20 if "--idle" in words else 0)
    assert outcome.calls == 10
    assert outcome.tokens == (160 if "--stream" in words else 0)
    assert outcome.whole_us.p50 > 0


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (SWAPPED, "a token of another call"),
        (SHORT, "too few tokens"),
        (DISORDERED, "a token that is not the next one"),
        (CUT_OFF, "the connection was closed"),
        (UNDONE, r"a stream without \[DONE\]"),
        (REFUSED, "status 400"),
    ],
)
def test_a_wrong_answer_is_found(load: Load, wrong: int, what: str) -> None:
    from benchmarks.gateway.outcome import Wrong, parse

    line = load.ask("--calls 2 --warm 0 --stream", wrong=wrong)

    with pytest.raises(Wrong, match=what):
        parse(line)


@pytest.mark.parametrize("wrong", [SWAPPED, SHORT, REFUSED])
def test_a_wrong_whole_answer_is_found(load: Load, wrong: int) -> None:
    from benchmarks.gateway.outcome import Wrong, parse

    with pytest.raises(Wrong):
        parse(load.ask("--calls 2 --warm 0", wrong=wrong))


def test_an_answer_that_is_wrong_before_the_measured_ones_counts(load: Load) -> None:
    from benchmarks.gateway.outcome import Wrong, parse

    with pytest.raises(Wrong, match="2 of 2 answers"):
        parse(load.ask("--calls 0 --warm 2", wrong=SHORT))


def test_a_slow_reader_makes_the_engine_wait(load: Load) -> None:
    """Otherwise the scenario would measure what the mock has piled up, not the gateway."""
    from benchmarks.gateway.outcome import parse

    slowly = "--read-bytes 65536 --read-every-us 1000"
    line = load.ask(
        f"--stream --tokens 2000 --calls 1 --warm 0 --pids {load.engine.pid} {slowly}",
        event_bytes=4096,
    )

    outcome = parse(line)
    assert outcome.tokens == 2000
    assert outcome.peak_kb < 8000


def test_cpu_of_the_named_processes_is_counted(load: Load) -> None:
    """So many calls that it shows also where the kernel counts in ticks of 10 ms."""
    from benchmarks.gateway.outcome import parse

    outcome = parse(load.ask(f"--calls 4000 --warm 0 --pids {load.engine.pid}"))

    assert outcome.cpu_us > 0


def test_the_kv_of_another_call_is_refused(load: Load) -> None:
    """So that a gateway that mixes up what prefill said of two calls gets no answer."""
    body = (
        b'{"model":"mock","prompt":"@0000000000000001 x","kv_transfer_params":'
        b'{"do_remote_prefill":true,"remote_request_id":"kv-0000000000000002"}}'
    )

    with pytest.raises(HTTPError, match="500"):
        urlopen(f"{load.engine.url}/v1/completions", body)
