"""Runs commands of pages as they stand, but for addresses, ports and how long.

    a gateway's address       that of the gateway that was started for this
    an engine's               that of one of the two behind it, or, of a server that is only
                              started, an address at which nobody answers
    a port to listen at       a free one

Commands that serve are started, have to say that they do, and have to end with 0 when told to.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.docs.shell import Command, parts, program
from tests.support.ports import free_port
from tests.support.processes import child
from tests.support.waiting import PATIENCE_SECONDS

SECONDS: Final = 3 * PATIENCE_SECONDS
"""Several run at a time, and each starts Python anew."""
TOKEN: Final = "a-token-of-31-letters-for-admins"

SERVERS: Final[Mapping[str, str]] = {
    "serve": r"^pdgate listens on http",
    "engine": r"engine ready http",
    "chaos": r"127\.0\.0\.1:\d+",
    "prefill-worker": r"takes prompts for",
}
"""Command -> what it says when it serves."""
ASKING: Final = ("doctor", "explain", "replay", "top")
"""Commands that ask a gateway or engines."""
ALONE: Final = ("key", "plan", "protocols", "simulate")

SHORTER: Final[Mapping[str, tuple[str, ...]]] = {
    "plan": ("--calls", "60"),
    "simulate": ("--calls", "60"),
}

_URL = re.compile(r"http://[\w.]+:\d+")
_PORTS = re.compile(r"(--(?:kv-events-(?:replay-)?)?port|--listen|--admin-listen|--host) (\S+)")


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway with two engines behind it, and files as pages name them.

    Attributes:
        gateway: Where it is asked; it has one listener.
    """

    folder: Path
    gateway: str
    prefill: str
    decode: str


def can_run(command: Command) -> bool:
    """Whether `run` knows how."""
    first, *more = parts(command.text)
    if program(first[0]) == "curl":
        return not more
    return (
        not more
        and first[0] == "pdgate"
        and (first[1] in (*SERVERS, *ASKING, *ALONE) or first[1] == "--show-completion")
    )


def run(command: Command, site: Site) -> None:
    """Raises AssertionError."""
    (words,) = parts(command.text)
    if words[0] == "curl":
        # An answer that is an error is a failure.
        text = _URL.sub(site.gateway, command.text).replace("curl", "curl -f", 1)
        _once(["bash", "-c", text], site)
    elif words[1] in SERVERS:
        _serve(words[1:], site)
    else:
        _once([*_pdgate(), *_asking(words[1:], site), *SHORTER.get(words[1], ())], site)


def _once(words: list[str], site: Site) -> None:
    done = subprocess.run(
        words,
        cwd=site.folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "no_proxy": "*"},
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout}\n{done.stderr}"


def _serve(words: list[str], site: Site) -> None:
    name = words[0]
    command = [*_pdgate(), *_served(words)]
    with child(command, cwd=site.folder, name=" ".join(words[:2])) as running:
        running.wait_for_line(SERVERS[name], SECONDS)
        running.signal(signal.SIGTERM)
        assert running.wait_for_end(SECONDS) == 0, running.tail()


def _served(words: list[str]) -> list[str]:
    """On ports that are free, towards nobody."""
    open_end = "..." in words
    text = shlex.join(word for word in words if word != "...")

    def free(found: re.Match[str]) -> str:
        flag, value = found[1], found[2]
        if flag == "--host":
            return f"{flag} 127.0.0.1"
        return f"{flag} {_free_address(value)}"

    text = _PORTS.sub(free, text)
    nobody: dict[str, str] = {}

    def unused(found: re.Match[str]) -> str:
        return nobody.setdefault(found[0], f"127.0.0.{len(nobody) + 2}:9")

    # Host and port, as they are in URLs and in kv=.
    text = re.sub(r"(?<=//|v=)[\w.]+:\d+", unused, text)
    changed = shlex.split(text)
    if words[0] == "serve":
        if "--port" not in changed:
            changed += ["--port", "0"]
        if open_end and not any(word.startswith("--instance") for word in changed):
            changed += ["--prefill", "http://127.0.0.8:9", "--decode", "http://127.0.0.9:9"]
    elif words[0] == "engine" and "--port" not in changed:
        changed += ["--port", "0"]
    return changed


def _free_address(value: str) -> str:
    host, colon, _ = value.rpartition(":")
    return f"{host}{colon}{free_port()}"


def _asking(words: list[str], site: Site) -> list[str]:
    of = {"--prefill": site.prefill, "--decode": site.decode}
    return [
        _URL.sub(of.get(before, site.gateway), word)
        for before, word in zip(["", *words], words, strict=False)
    ]


def _pdgate() -> list[str]:
    return [sys.executable, "-m", "pdgate"]


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Has answered a call `chat-7f`, which pages ask about."""
    (folder / "token").write_text(TOKEN)
    with ExitStack() as stack:

        def started(*words: str) -> str:
            program = child([*_pdgate(), *words], cwd=folder, name=words[0])
            running = stack.enter_context(program)
            url = running.wait_for_line(r"(?:ready|listens on) (http://\S+)", SECONDS)[1]
            running.wait_for_http(f"{url}/{'ready' if words[0] == 'serve' else 'health'}", SECONDS)
            return url

        engine = (
            *("engine", "--port", "0", "--pdd-protocol", "vllm-nixl"),
            *("--served-model-name", "tiny", "--served-model-name", "Qwen/Qwen3-0.6B"),
            # As an engine is called that was told no name.
            *("--served-model-name", "pdgate-tiny"),
            *("--admin-token-file", "token"),
        )
        prefill, decode = (started(*engine, "--role", role) for role in ("prefill", "decode"))
        _write_files(folder, prefill, decode)
        gateway = started(
            *("serve", "--port", "0", "--prefill", prefill, "--decode", decode),
            *("--admin-token-file", "token", "--debug-routes"),
        )
        found = Site(folder, gateway, prefill, decode)
        _call(found, "chat-7f")
        yield found


def _write_files(folder: Path, prefill: str, decode: str) -> None:
    engines = (("prefill", prefill), ("decode", decode))
    (folder / "pdgate.toml").write_text(
        "\n".join(f'[[instances]]\nrole = "{role}"\nurl = "{url}"' for role, url in engines)
    )
    calls = [
        {"timestamp": 100 * n, "input_length": 600, "output_length": 3, "hash_ids": [n, n + 1]}
        for n in range(4)
    ]
    (folder / "trace.jsonl").write_text("".join(json.dumps(call) + "\n" for call in calls))


def _call(site: Site, call_id: str) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    request = urllib.request.Request(
        f"{site.gateway}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json", "x-request-id": call_id},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=SECONDS) as answer:
        answer.read()
