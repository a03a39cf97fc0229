"""The tutorial's policy, exactly as the page prints it, chooses engines."""

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdgate.gateway.config import load
from pdgate.protocols.call import CHAT, Call
from pdgate.protocols.instance import Role
from pdgate.scheduling import policy
from pdgate.scheduling.endpoints import Endpoints
from pdgate.scheduling.policy_context import PolicyContext
from pdgate.scheduling.scheduler import Scheduler
from tests.docs.package import write
from tests.docs.pages import DOCS, labelled
from tests.support.processes import child

PAGE = DOCS / "add-a-policy.md"

pytestmark = pytest.mark.source


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Installed while the test runs."""
    write(PAGE, tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("pdgate_sticky", None)


def test_an_entry_point_is_all_that_it_takes(package: Path) -> None:
    """Reserved through the real scheduler, from the configuration of the page's flags."""
    settings = load(None, _flags())
    endpoints = Endpoints(settings.fleet)
    for endpoint in endpoints:
        endpoints.mark_up(endpoint.instance.id, ["tiny"])
    chooses = policy.load(settings.prefill_policy, PolicyContext(Role.PREFILL))
    scheduler = Scheduler(endpoints, prefill=chooses, decode=chooses, plain=chooses)
    call = Call("c", "c-1", CHAT, {}, headers=[(b"x-session-id", b"s1")], model="tiny")

    with (
        scheduler.reserve(Role.PREFILL, call) as first,
        scheduler.reserve(Role.PREFILL, call) as second,
    ):
        assert "pdgate_sticky" in sys.modules
        assert first.instance.id == second.instance.id


def test_the_tutorials_own_tests_pass(package: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_sticky.py"]

    with child(command, cwd=package, env={"PYTHONPATH": str(package)}, name="pytest") as running:
        assert running.wait_for_end() == 0, running.tail()
        assert "3 passed" in running.tail()


def _flags() -> dict[str, object]:
    """What the page's command puts over the defaults, with a second prefill engine."""
    words = shlex.split(labelled(PAGE, "sh")["serve"])
    given = dict(zip(words[2::2], words[3::2], strict=True))
    urls = [
        ("prefill", given["--prefill"]),
        ("prefill", "http://p1"),
        ("decode", given["--decode"]),
    ]
    return {
        "prefill_policy": given["--prefill-policy"],
        "instances": [{"role": role, "url": url} for role, url in urls],
    }
