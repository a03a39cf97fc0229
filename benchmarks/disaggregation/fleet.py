"""The engines and gateways that are measured, as processes of this machine."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tests.support.processes import Child, child

RULES = ("always", "never", "auto")
START_SECONDS = 120
ENGINE = (
    *("--pdd-protocol", "vllm-nixl", "--transfer", "shm", "--no-prefix-cache", "--blocks", "2048"),
    # A step of decode takes at least as long as one of a small model on a GPU.
    *("--min-itl-ms", "20"),
)
UNCACHED_TOKENS = 200
"""What `auto` takes for a short prompt until it knows better."""


@contextmanager
def fleet() -> Iterator[Mapping[str, str]]:
    """Rule -> URL of its gateway."""
    with ExitStack() as running:
        prefill, decode = (_engine(running, role) for role in ("prefill", "decode"))
        yield {rule: _gateway(running, rule, prefill, decode) for rule in RULES}


def _engine(running: ExitStack, role: str) -> str:
    process = _start(running, "engine", "--role", role, *ENGINE)
    return process.wait_for_line(r"engine ready (http://\S+)", START_SECONDS)[1]


def _gateway(running: ExitStack, rule: str, prefill: str, decode: str) -> str:
    told = ("--disaggregate", rule, "--uncached-tokens", str(UNCACHED_TOKENS))
    process = _start(running, "serve", "--prefill", prefill, "--decode", decode, *told)
    url = process.wait_for_line(r"pdgate listens on (http://\S+)", START_SECONDS)[1]
    process.wait_for_http(f"{url}/ready", START_SECONDS)
    return url


def _start(running: ExitStack, *words: str) -> Child:
    command = [sys.executable, "-m", "pdgate", words[0], "--port", "0", *words[1:]]
    return running.enter_context(child(command, name=words[0]))
