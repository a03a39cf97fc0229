"""A fork of pdgate is to who starts it what `python -m pdgate` is, and whoever asks for more gets that."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pdgate.lab.processes import running
from tests.support.processes import child

pytestmark = pytest.mark.slow

ENGINE = (sys.executable, "-m", "pdgate", "engine", "--port", "0")
READY = "pdgate engine ready"


def started_by(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def parent_of(pid: int) -> int:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[1])


def test_it_is_a_child_in_a_session_of_its_own_and_has_its_folder_and_variables(
    tmp_path: Path,
) -> None:
    with child(ENGINE, env={"WHOSE": "ours"}, cwd=tmp_path, log=tmp_path / "log") as engine:
        engine.wait_for_line(READY)

        assert "tests.support.preloaded" in started_by(engine.pid)
        assert parent_of(engine.pid) == os.getpid()
        assert os.getsid(engine.pid) == engine.pid
        assert Path(f"/proc/{engine.pid}/cwd").resolve() == tmp_path.resolve()

        engine.signal(signal.SIGKILL)
        assert engine.wait_for_end() == -signal.SIGKILL


def test_it_has_no_descriptor_that_is_not_its_own(tmp_path: Path) -> None:
    with (tmp_path / "kept").open("wb") as kept:
        os.set_inheritable(kept.fileno(), True)
        with child(ENGINE) as engine:
            engine.wait_for_line(READY)
            held = [os.readlink(fd) for fd in Path(f"/proc/{engine.pid}/fd").iterdir()]
            assert str(tmp_path / "kept") not in held
            ours = [os.readlink(fd) for fd in Path("/proc/self/fd").iterdir() if fd.exists()]
            assert not {one for one in held if one.startswith("socket:")} & {*ours}


@pytest.mark.parametrize(("flag", "code"), [("--help", 0), ("--no-such-flag", 2)])
def test_its_output_and_its_exit_code_are_heard(flag: str, code: int) -> None:
    done = subprocess.run([*ENGINE, flag], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Usage" in (done.stderr if code else done.stdout)


def test_threads_that_another_test_has_left_behind_do_not_matter() -> None:
    with child(ENGINE, env={"OMP_NUM_THREADS": "3"}) as engine:
        engine.wait_for_line(READY)
        assert "tests.support.preloaded" in started_by(engine.pid)


async def test_asyncio_waits_for_it_and_sees_its_end() -> None:
    async with running(ENGINE, ready=READY) as engine:
        assert "tests.support.preloaded" in started_by(engine.pid)
        os.kill(engine.pid, signal.SIGTERM)
        with pytest.raises(Exception, match="ended with exit code 0"):
            await asyncio.wait_for(engine.ended(), 30)


def test_a_variable_that_python_reads_at_its_start_has_a_start_of_its_own() -> None:
    with child(ENGINE, env={"PYTHONHASHSEED": "7"}) as engine:
        engine.wait_for_line(READY)
        assert "-m pdgate engine" in started_by(engine.pid)
