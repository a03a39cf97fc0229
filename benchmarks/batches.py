"""What a line of a batch costs a gateway, with its state in SQLite and in a Redis.

    python -m benchmarks.batches [--lines 50000] [--tokens 100] [--concurrency 16]

One engine, which is a mock in C and answers at once, one gateway and, for the second line of the table, one redis-server (appendonly).
Told are, from the beginning of the batch to its end: wall time a line; CPU time a line of the gateway and of Redis; the most memory that the
gateway held, beside what it held before; and the most that Redis did.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from benchmarks.gateway.programs import compiled
from pdgate.protocols.call import COMPLETIONS
from tests.support.processes import Child, child
from tests.support.redis import RedisServer, redis_server

LOOK_SECONDS: Final = 0.5
TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """
    Attributes:
        answers_bytes: Of the file of answers.
        redis_bytes: 0 without a Redis.
    """

    seconds: float
    gateway_cpu_seconds: float
    redis_cpu_seconds: float
    gateway_bytes: int
    redis_bytes: int
    answers_bytes: int


def cpu_seconds(pid: int) -> float:
    """Of the process itself."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS


def most_bytes(pid: int) -> int:
    """That it ever held."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def content(lines: int, tokens: int) -> bytes:
    body = {"model": "mock", "prompt": "@0000000000000000 Say it.", "max_tokens": tokens}
    rows = (
        {"custom_id": f"line-{number}", "method": "POST", "url": COMPLETIONS, "body": body}
        for number in range(lines)
    )
    return b"\n".join(json.dumps(row).encode() for row in rows)


@contextmanager
def gateway(engine: str, folder: Path, flags: Sequence[str]) -> Iterator[tuple[Child, str]]:
    command = [sys.executable, "-m", "pdgate", "serve", "--port", "0", "--pdd-protocol", "plain"]
    command += ["--plain", engine, "--batch-folder", str(folder), *flags]
    with child(command, name="gateway") as process:
        url = process.wait_for_line(r"listens on (http://\S+)")[1]
        process.wait_for_http(f"{url}/ready")
        yield process, url


def served(http: httpx2.Client, calls: bytes) -> dict[str, Any]:
    """A batch that has ended."""
    form = {"purpose": "batch"}
    file = http.post("/v1/files", data=form, files={"file": ("calls", calls)}).json()
    asked = {"input_file_id": file["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
    batch: dict[str, Any] = http.post("/v1/batches", json=asked).json()
    while batch["status"] in ("validating", "in_progress", "finalizing"):
        time.sleep(LOOK_SECONDS)
        batch = http.get(f"/v1/batches/{batch['id']}").json()
    return batch


def cost(calls: bytes, engine: str, redis: RedisServer | None, flags: Sequence[str]) -> Cost:
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        if redis is not None:
            flags = [
                *flags,
                "--batch-state",
                redis.url,
                "--batch-storage",
                f"file://{folder}/there",
            ]
        with (
            gateway(engine, folder / "own", flags) as (process, url),
            httpx2.Client(base_url=url, timeout=60, trust_env=False) as http,
        ):
            servers = [process, *([redis.process] if redis is not None and redis.process else [])]
            before = [cpu_seconds(one.pid) for one in servers]
            held, began = most_bytes(process.pid), time.perf_counter()
            batch = served(http, calls)
            seconds = time.perf_counter() - began
            used = [cpu_seconds(one.pid) - b for one, b in zip(servers, before, strict=True)]
            assert batch["request_counts"]["failed"] == 0, batch
            answers = http.get(f"/v1/files/{batch['output_file_id']}").json()
            in_redis = 0
            if redis is not None:
                with redis.client() as client:
                    info: dict[str, int] = client.info("memory")
                    in_redis = info["used_memory_peak"] - info["used_memory_startup"]
            return Cost(
                seconds,
                used[0],
                used[1] if redis is not None else 0.0,
                most_bytes(process.pid) - held,
                in_redis,
                answers["bytes"],
            )


def measure(lines: int, tokens: int, concurrency: int, cache: Path) -> dict[str, Cost]:
    """By the kind of state."""
    costs: dict[str, Cost] = {}
    calls = content(lines, tokens)
    flags = ["--batch-concurrency", str(concurrency), "--batch-max-lines", str(lines)]
    flags += ["--batch-max-file-bytes", str(len(calls))]
    with ExitStack() as running:
        mock = running.enter_context(child([str(compiled(cache).engine)], name="engine"))
        port = mock.wait_for_line(r"^(\d+)$")[1]
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        redis = running.enter_context(redis_server(folder))
        print(f"{lines:,} lines, {concurrency} at once")
        print(
            "| state | wall, ms a line | gateway's CPU, ms a line | Redis' | gateway, MB more | Redis, MB | answers, MB |"
        )
        print("|---|---|---|---|---|---|---|")
        for name, shared in (("SQLite", None), ("Redis", redis)):
            found = costs[name] = cost(calls, f"http://127.0.0.1:{port}", shared, flags)
            each = (found.seconds, found.gateway_cpu_seconds, found.redis_cpu_seconds)
            words = [f"{1000 * one / lines:.3f}" for one in each]
            sizes = (found.gateway_bytes, found.redis_bytes, found.answers_bytes)
            words += [f"{one / 1e6:.0f}" for one in sizes]
            print(f"| {name} | " + " | ".join(words) + " |", flush=True)
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--concurrency", type=int, default=16)
    home = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=Path(home) / "pdgate-benchmarks")
    given = parser.parse_args()
    measure(given.lines, given.tokens, given.concurrency, given.cache)


if __name__ == "__main__":
    main()
