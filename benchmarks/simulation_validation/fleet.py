"""The engines and the gateway that are measured, as processes of this machine."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.disaggregation.fleet import start
from benchmarks.simulation_validation.piece import PAGE_TOKENS

START_SECONDS = 180
STEP_MS, READ_MS = 20.0, 0.4
"""Of a step at least, and of each prompt token in it: more than the engines compute when nothing else runs."""

STEP_TOKENS = 256
PAGES = 1024
SEQUENCES = 32


@dataclass(frozen=True, slots=True)
class Fleet:
    """
    Attributes:
        gateway: Its URL.
        prefill: URL of an idle prefill engine, for calibration.
    """

    gateway: str
    prefill: str


@contextmanager
def fleet(
    policy: str, prefills: int, decodes: int, slow_motion: float, more: Sequence[str] = ()
) -> Iterator[Fleet]:
    """`more`: flags of the gateway."""
    step, read = f"{slow_motion * STEP_MS}", f"{slow_motion * READ_MS}"
    pace = ("--min-itl-ms", step, "--min-prefill-ms", step, "--min-read-ms", read)
    limits = (
        *("--block-tokens", str(PAGE_TOKENS), "--blocks", str(PAGES)),
        *("--max-num-seqs", str(SEQUENCES), "--max-num-batched-tokens", str(STEP_TOKENS)),
        *("--pdd-protocol", "vllm-nixl", "--transfer", "shm"),
    )
    with ExitStack() as running:
        # All at once: most of their start is imports.
        roles = ["prefill"] * prefills + ["decode"] * decodes
        engines = [start(running, "engine", "--role", role, *limits, *pace) for role in roles]
        urls = [
            one.wait_for_line(r"engine ready (http://\S+)", START_SECONDS)[1] for one in engines
        ]
        flags = [word for role, url in zip(roles, urls, strict=True) for word in (f"--{role}", url)]
        told = ("--prefill-policy", policy, "--decode-policy", policy)
        gateway = start(running, "serve", *flags, *told, *more)
        url = gateway.wait_for_line(r"pdgate listens on (http://\S+)", START_SECONDS)[1]
        gateway.wait_for_http(f"{url}/ready", START_SECONDS)
        yield Fleet(url, urls[0])
