"""The tutorial's package, exactly as the page prints it, hands a call over."""

import json
import os
import re
import shlex
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pdgate.forwarders import registry
from pdgate.forwarders.base import HandOff, Mode
from pdgate.gateway import installed
from tests.docs.package import write
from tests.docs.pages import DOCS, blocks, labelled
from tests.support.ports import free_port
from tests.support.processes import child
from tests.support.scripted import D0, P0, P1, Crossing, Scripted, chat

PAGE = DOCS / "add-a-forwarder.md"
MODULES = ("pdgate_brook", "test_brook", "brook_engine")

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
    """Failover comes with the framework, and each attempt files under a key of its own."""
    nothing, filed = ({"brook": {"stored_tokens": tokens}} for tokens in (0, 3))
    engines = Scripted(p0=filed, p1=nothing, d0=[b"data: fine\n\n"])
    crossing = Crossing(
        engines, *(replace(one, protocol="brook") for one in (P0, P1, D0)), mode=mode
    )

    told = await crossing.ask(chat())

    assert told.body == b"data: fine\n\n"
    assert engines.visits == ["p1", "p0", "d0"]
    first, second, fetch = (leg.body["brook"] for leg, _ in engines.sent)
    assert first["put"] != second["put"]
    assert fetch == {"get": second["put"], "from": "10.0.0.1:7100"}


def test_the_tutorials_own_tests_pass(package: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_brook.py"]

    with child(command, cwd=package, env={"PYTHONPATH": str(package)}, name="pytest") as running:
        assert running.wait_for_end() == 0, running.tail()
        assert "5 passed" in running.tail()


@pytest.mark.slow
@pytest.mark.parametrize("mode", Mode)
def test_decode_answers_from_what_prefill_filed(package: Path, mode: Mode) -> None:
    """Real processes: two of the page's engines and the gateway, started as the page says."""
    env = {"PYTHONPATH": os.pathsep.join([str(package), *sys.path])}
    ports = {port: str(free_port()) for port in ("8000", "8101", "8102")}
    serve = [*_command("gateway", ports)[0], "--scheduling-mode", mode]
    prefill, decode = (words[:-1] for words in _command("engines", ports))
    gateway = f"http://127.0.0.1:{ports['8000']}"
    with (
        child(prefill, cwd=package, env=env, name="prefill") as p,
        child(decode, cwd=package, env=env, name="decode") as d,
    ):
        p.wait_for_http(f"http://127.0.0.1:{ports['8101']}/health")
        d.wait_for_http(f"http://127.0.0.1:{ports['8102']}/health")
        with child(serve, cwd=package, env=env, name="gateway") as running:
            running.wait_for_http(f"{gateway}/ready")

            answer, headers = _ask(gateway, "the sky is")
            local, local_headers = _ask(gateway, ["one", "two"])

    assert answer == "decoded from the pages of: the sky is"
    assert (headers["x-pd-path"], headers["x-pd-decode"]) == ("disaggregated", "decode-0")
    assert local.startswith("computed here")
    assert local_headers["x-pd-path"] == "local"


def _command(label: str, ports: dict[str, str]) -> list[list[str]]:
    """The lines of a shell block as words, with ports that are free."""
    text = labelled(PAGE, "sh")[label].replace("\\\n", " ")
    text = re.sub("|".join(ports), lambda found: ports[found[0]], text)
    lines = [shlex.split(line) for line in text.splitlines()]
    programs = {"python": [sys.executable], "pdgate": [sys.executable, "-m", "pdgate"]}
    return [[*programs[line[0]], *line[1:]] for line in lines]


def _ask(gateway: str, prompt: object) -> tuple[str, dict[str, str]]:
    body = json.dumps({"model": "brook-tiny", "prompt": prompt}).encode()
    request = urllib.request.Request(
        f"{gateway}/v1/completions", body, {"content-type": "application/json"}
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=30) as answer:
        return json.load(answer)["choices"][0]["text"], dict(answer.headers)
