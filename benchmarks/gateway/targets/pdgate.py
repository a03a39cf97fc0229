"""pdgate of this checkout, five times; a sixth, compiled, has a file of its own.

pdgate            with an API key, limits for admission, and all that is on by default
pdgate-two        the same in two processes
pdgate-defaults   as `pdgate serve` comes
pdgate-asgi       like the first, with the front end that runs in any ASGI server
pdgate-app        like the first, by the routes of its FastAPI application, on uvicorn
"""

import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from benchmarks.gateway.targets.base import KEY, Place, Target

LIMIT = 100_000
"""Calls at an engine: more than ever come, so that admission counts and nobody waits."""


def write_key(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    digest = sha256(KEY.encode()).hexdigest()
    table = f'[[api_keys]]\nname = "benchmark"\nsha256 = "{digest}"\nmax_calls = {LIMIT}\n'
    (folder / "keys.toml").write_text(table, encoding="utf-8")


def _nothing(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)


def _serve(place: Place, module: str = "pdgate", python: str = sys.executable) -> list[str]:
    return [
        *(python, "-m", module, "serve", "--port", str(place.port)),
        *("--pdd-protocol", "vllm-nixl", "--prefill", place.prefill, "--decode", place.decode),
    ]


def all_on(place: Place, module: str = "pdgate", python: str = sys.executable) -> Sequence[str]:
    return [
        *_serve(place, module, python),
        *("--api-keys-file", str(place.folder / "keys.toml")),
        *("--prefill-concurrency", str(LIMIT), "--decode-concurrency", str(LIMIT)),
    ]


ALL_ON = Target("pdgate", "this checkout, API key and admission on", 2, write_key, all_on)
TWO = Target(
    "pdgate-two",
    "this checkout, as the first, two workers",
    2,
    write_key,
    lambda place: [*all_on(place), "--workers", "2"],
)
DEFAULTS = Target("pdgate-defaults", "this checkout, defaults", 2, _nothing, _serve)
ASGI = Target(
    "pdgate-asgi",
    "this checkout, as the first, ASGI front end",
    2,
    write_key,
    lambda place: all_on(place, "benchmarks.gateway.asgi_front"),
)
APPLICATION = Target(
    "pdgate-app",
    "this checkout, as the first, FastAPI application",
    2,
    write_key,
    lambda place: [
        *(sys.executable, "-m", "benchmarks.gateway.application", str(place.port)),
        *(place.prefill, place.decode, str(place.folder / "keys.toml")),
    ],
)
