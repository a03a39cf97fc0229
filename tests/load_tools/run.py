"""python -m tests.load_tools.run [NAME ...]: one short run of each tool; fails if one request does.

Each has an environment of its own, which is kept; the first time takes some minutes.
`vllm bench serve` is among the tests on real vLLM (tests/end_to_end/vllm/test_bench_serve.py),
as that environment has it.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from tests.end_to_end.vllm import make_model
from tests.load_tools.tools import REQUESTS, TOOLS, Site, Tool
from tests.support.environments import kept, make, python_in
from tests.support.processes import Child, child

MODEL: Final = "tiny"
SECONDS: Final = 300
READY: Final = r"(http://\S+)"


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """A prefill and a decode engine, and the gateway."""
    model = folder / "model"
    make_model.make(model)
    with ExitStack() as running:
        shared = ("--pdd-protocol", "vllm-nixl", "--port", "0")
        what = ("--model", str(model), "--served-model-name", MODEL, "--transfer", "shm")
        engines = [
            running.enter_context(_pdgate("engine", *shared, *what, "--role", role))
            for role in ("prefill", "decode")
        ]
        prefill, decode = (_address(engine) for engine in engines)
        gateway = running.enter_context(
            _pdgate("serve", *shared, "--prefill", prefill, "--decode", decode)
        )
        url = _address(gateway)
        gateway.wait_for_http(f"{url}/ready", 60)
        yield Site(url, MODEL, model)


def _pdgate(*arguments: str) -> AbstractContextManager[Child]:
    return child([sys.executable, "-m", "pdgate", *arguments], name=arguments[0])


def _address(process: Child) -> str:
    return process.wait_for_line(READY, 60)[1]


def run(tool: Tool, at: Site) -> str:
    """What went wrong; empty for nothing."""
    with kept(tool.name, [tool.package]) as (folder, complete):
        if not complete:
            make(folder / "venv", tool.package)
        program = python_in(folder / "venv").with_name(tool.program)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        done = subprocess.run(
            [str(program), *tool.arguments(at, out)],
            cwd=out,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode:
            return f"it ended with {done.returncode}:\n{_tail(done.stdout)}"
        found = tool.outcome(out)
    if (found.good, found.bad) != (REQUESTS, 0):
        return f"{found.good} of {REQUESTS} requests went well, {found.bad} did not"
    return ""


def _tail(text: str) -> str:
    return "\n".join(re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()[-30:])


def main(names: Sequence[str]) -> int:
    chosen = [tool for tool in TOOLS if not names or tool.name in names]
    unknown = set(names) - {tool.name for tool in TOOLS}
    if unknown:
        print(f"there is no tool {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    failed = False
    with tempfile.TemporaryDirectory() as scratch, site(Path(scratch)) as at:
        for tool in chosen:
            wrong = run(tool, at)
            failed = failed or bool(wrong)
            print(f"{tool.package}: {wrong or f'{REQUESTS} requests, none failed'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
