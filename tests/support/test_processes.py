import signal
import sys
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import ChildFailed, child


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_line_is_found_whether_said_before_or_after_the_wait_began() -> None:
    with child(python("import time; print('port 1'); time.sleep(.1); print('port 22')")) as it:
        assert it.wait_for_line(r"port (\d\d)")[1] == "22"
        assert it.wait_for_line(r"port (\d)$")[1] == "1"


def test_a_child_that_dies_early_fails_at_once_and_shows_its_log() -> None:
    with (
        pytest.raises(ChildFailed, match=r"(?s)ended with 3 .*no such model"),
        child(python("print('no such model'); raise SystemExit(3)")) as it,
    ):
        it.wait_for_line("ready", 60)


def test_a_wait_ends_at_its_deadline() -> None:
    with (
        pytest.raises(ChildFailed, match=r"waited 0\.1 s in vain for a line like 'ready'"),
        child(python("import signal; signal.pause()")) as it,
    ):
        it.wait_for_line("ready", 0.1)


def test_http_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    server = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)]
    with child(server, cwd=tmp_path) as it:
        it.wait_for_http(f"http://127.0.0.1:{port}/")


def test_nothing_of_a_child_outlives_the_block() -> None:
    """Not even a grandchild that ignores SIGTERM and whose parent is gone."""
    stubborn = (
        "import signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "signal.pause()\n"
    )
    code = (
        "import subprocess, sys\n"
        f"inner = subprocess.Popen([sys.executable, '-c', {stubborn!r}], stdout=-1)\n"
        "print(inner.stdout.readline(), 'inner', inner.pid)\n"
    )
    with child(python(code), grace_seconds=0.1) as it:
        pid = int(it.wait_for_line(r"inner (\d+)")[1])
        it.wait_for_end()
        assert runs(pid)
    assert not runs(pid)


def test_a_failing_block_prints_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_beside(python("print('last words')"))
    assert "last words" in capfd.readouterr().err


def fail_beside(command: list[str]) -> None:
    with child(command) as it:
        it.wait_for_end()
        raise ZeroDivisionError


def test_signals_reach_the_child() -> None:
    with child(python("import signal; print('up', flush=True); signal.pause()")) as it:
        it.wait_for_line("up")
        # Not SIGINT: whoever starts us in the background may have us ignore it.
        it.signal(signal.SIGTERM)
        assert it.wait_for_end() == -signal.SIGTERM


def runs(pid: int) -> bool:
    """Alive, and not merely waiting for its parent to notice its death."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
