"""The tutorial's package, both halves exactly as the page prints them, hands a call over."""

import json
import os
import re
import shlex
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from pdgate.engine.hand_over import registry as connectors
from pdgate.forwarders import registry
from pdgate.forwarders.base import HandOff, Mode
from pdgate.gateway import installed
from tests.docs.package import write
from tests.docs.pages import DOCS, blocks, labelled
from tests.support.ports import free_port
from tests.support.processes import child
from tests.support.scripted import D0, P0, P1, Crossing, Scripted, chat
from tests.support.waiting import PATIENCE_SECONDS

PAGE = DOCS / "add-a-forwarder.md"
MODULES = ("pdgate_brook", "pdgate_brook_engine", "test_brook")
DIRECT: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))

pytestmark = pytest.mark.source


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Installed while the test runs."""
    write(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for module in MODULES:
        sys.modules.pop(module, None)


@pytest.mark.parametrize("mode", Mode)
def test_an_entry_point_is_all_that_it_takes(package: Path, mode: Mode) -> None:
    forwarder = registry.load("brook", mode)

    assert isinstance(forwarder, HandOff)
    assert (forwarder.name, type(forwarder).__module__) == ("brook", "pdgate_brook")


def test_the_listing_is_the_one_on_the_page(package: Path) -> None:
    printed = next(b.text for b in blocks(PAGE) if b.text.startswith("PROTOCOL"))

    lines = installed.lines([one for one in installed.protocols() if one.name == "brook"])

    assert [line.split() for line in lines] == [line.split() for line in printed.splitlines()]


@pytest.mark.parametrize("mode", Mode)
async def test_it_crosses_two_engines_and_survives_a_bad_one(package: Path, mode: Mode) -> None:
    """Failover comes with the framework, and each attempt keeps under a key of its own."""
    nothing, kept = ({"kv_transfer_params": {"kept_tokens": tokens}} for tokens in (0, 3))
    engines = Scripted(p0=kept, p1=nothing, d0=[b"data: fine\n\n"])
    crossing = Crossing(
        engines, *(replace(one, protocol="brook") for one in (P0, P1, D0)), mode=mode
    )

    told = await crossing.ask(chat())

    assert told.body == b"data: fine\n\n"
    assert engines.visits == ["p1", "p0", "d0"]
    first, second, read = (leg.body["kv_transfer_params"] for leg, _ in engines.sent)
    assert first["put"] != second["put"]
    assert read == {"get": second["put"], "host": "10.0.0.1", "port": 7100}


def test_the_tutorials_own_tests_pass(package: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_brook.py"]

    with child(command, cwd=package, env={"PYTHONPATH": str(package)}, name="pytest") as running:
        assert running.wait_for_end() == 0, running.tail()
        assert "5 passed" in running.tail()


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
def test_decode_answers_from_what_prefill_kept(package: Path, mode: Mode) -> None:
    """Real processes: two engines and the gateway, started as the page says, and one engine alone."""
    env = {"PYTHONPATH": os.pathsep.join([str(package), *sys.path])}
    ports = {port: str(free_port()) for port in ("8000", "8101", "8102", "7101")}
    serve = [*_command("gateway", ports)[0], "--scheduling-mode", mode]
    prefill, decode = (words[:-1] for words in _command("engines", ports))
    single = [sys.executable, "-m", "pdgate", "engine", "--port", str(free_port())]
    gateway, d_url, alone_url = (
        f"http://127.0.0.1:{p}" for p in (ports["8000"], ports["8102"], single[-1])
    )
    with (
        child(prefill, cwd=package, env=env, name="prefill") as p,
        child(decode, cwd=package, env=env, name="decode") as d,
        child(single, name="alone") as alone,
    ):
        p.wait_for_http(f"http://127.0.0.1:{ports['8101']}/health")
        d.wait_for_http(f"{d_url}/health")
        alone.wait_for_http(f"{alone_url}/health")
        with child(serve, cwd=package, env=env, name="gateway") as running:
            running.wait_for_http(f"{gateway}/ready")

            body = _body(ports)
            answer, headers = _ask(gateway, body)
            expected, _ = _ask(alone_url, body)
            loaded = _loaded_bytes(d_url)
            _, local_headers = _ask(gateway, {**body, "prompt": ["one", "two"]})

    assert answer == expected
    assert loaded > 0
    assert (headers["x-pd-path"], headers["x-pd-decode"]) == ("disaggregated", "decode-0")
    assert local_headers["x-pd-path"] == "local"


def test_engines_say_which_protocols_there_are(package: Path) -> None:
    assert connectors.load("brook").__module__ == "pdgate_brook_engine"
    with pytest.raises(LookupError, match=r"no protocol is called 'smoke'; there are .*brook, "):
        connectors.load("smoke")


def _command(label: str, ports: dict[str, str]) -> list[list[str]]:
    """The lines of a shell block as words, with ports that are free."""
    text = labelled(PAGE, "sh")[label].replace("\\\n", " ")
    text = re.sub("|".join(ports), lambda found: ports[found[0]], text)
    lines = [shlex.split(line) for line in text.splitlines()]
    return [[sys.executable, "-m", *line] if line[0] == "pdgate" else line for line in lines]


def _body(ports: dict[str, str]) -> dict[str, Any]:
    """What the page asks."""
    (curl,) = _command("ask", ports)
    found: dict[str, Any] = json.loads(curl[curl.index("-d") + 1])
    return found


def _ask(server: str, asked: dict[str, Any]) -> tuple[str, dict[str, str]]:
    request = urllib.request.Request(
        f"{server}/v1/completions", json.dumps(asked).encode(), {"content-type": "application/json"}
    )
    with DIRECT.open(request, timeout=PATIENCE_SECONDS) as answer:
        return json.load(answer)["choices"][0]["text"], dict(answer.headers)


def _loaded_bytes(engine: str) -> float:
    with DIRECT.open(f"{engine}/metrics", timeout=PATIENCE_SECONDS) as page:
        found = re.search(
            r"^pdgate_engine_kv_loaded_bytes(?:_total)?(?:{.*})? (\S+)",
            page.read().decode(),
            re.MULTILINE,
        )
    assert found
    return float(found[1])
