"""The engines and gateways that are measured, as processes of this machine."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from tests.support.processes import Child, child

RULES = ("always", "never", "auto")
START_SECONDS = 120
ENGINE = (
    *("--pdd-protocol", "vllm-nixl", "--transfer", "shm", "--no-prefix-cache", "--blocks", "2048"),
)
STEP_MS, READ_MS = 20.0, 0.1
"""Of a small model on a GPU: a step of decode, and what a step takes for each prompt token.

It takes the longer of the two, so a short prompt rides along in a step that is due anyway."""

UNCACHED_TOKENS = 100
"""What `auto` takes for a short prompt until it knows better."""


@contextmanager
def fleet(slow_motion: float = 1.0) -> Iterator[Mapping[str, str]]:
    """Rule -> URL of its gateway.

    `slow_motion`: how many times as long steps take. Beside other programs the engines compute
    longer than the steps shall take, and that is what would be measured.
    """
    pace = ("--min-itl-ms", f"{slow_motion * STEP_MS}", "--min-read-ms", f"{slow_motion * READ_MS}")
    with ExitStack() as running:
        prefill, decode = (_engine(running, role, pace) for role in ("prefill", "decode"))
        yield {rule: _gateway(running, rule, prefill, decode) for rule in RULES}


def _engine(running: ExitStack, role: str, pace: Sequence[str]) -> str:
    process = start(running, "engine", "--role", role, *ENGINE, *pace)
    return process.wait_for_line(r"engine ready (http://\S+)", START_SECONDS)[1]


def _gateway(running: ExitStack, rule: str, prefill: str, decode: str) -> str:
    told = ("--disaggregate", rule, "--uncached-tokens", str(UNCACHED_TOKENS))
    process = start(running, "serve", "--prefill", prefill, "--decode", decode, *told)
    url = process.wait_for_line(r"pdgate listens on (http://\S+)", START_SECONDS)[1]
    process.wait_for_http(f"{url}/ready", START_SECONDS)
    return url


def start(running: ExitStack, *words: str) -> Child:
    """`pdgate` with these words, on a free port, until the stack ends."""
    command = [sys.executable, "-m", "pdgate", words[0], "--port", "0", *words[1:]]
    return running.enter_context(child(command, name=words[0]))
