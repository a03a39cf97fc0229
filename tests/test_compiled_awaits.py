"""The lint of compiled modules finds what makes exceptions leak there, and finds none of it in ours."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.source

TOOLS = Path(__file__).parents[1] / "tools"


@pytest.fixture(scope="module")
def lint() -> Any:
    sys.path.insert(0, str(TOOLS))
    try:
        spec = spec_from_file_location("compiled_awaits", TOOLS / "compiled_awaits.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOOLS))
    return module


def test_no_compiled_module_waits_while_it_handles_an_exception() -> None:
    told = subprocess.run(
        [sys.executable, str(TOOLS / "compiled_awaits.py")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (told.returncode, told.stdout.strip(), told.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("try:\n  pass\nexcept E:\n  await g()", [4]),
        ("try:\n  pass\nexcept* E:\n  await g()", [4]),
        ("try:\n  pass\nfinally:\n  if x:\n    await g()", [5]),
        ("try:\n  pass\nexcept E:\n  return [y async for y in g()]", [4]),
        ("async with a:\n  pass", [1]),
        ("async with a:  # its end does not wait\n  pass", []),
        ("loop.create_task(work())", [1]),
        ("class A(msgspec.Struct):\n  a: int", [1]),
        ("loop.create_task(task_root(work()))", []),
        ("loop.create_task(hot_task(work()))", []),
        ("try:\n  await g()\nexcept E:\n  pass\nelse:\n  await g()", []),
        ("try:\n  pass\nexcept E:\n  async def later():\n    await g()", []),
    ],
)
def test_it_finds(lint: Any, code: str, lines: list[int]) -> None:
    body = "".join(f"  {line}\n" for line in code.splitlines())

    assert [line - 1 for line, _ in lint.found(f"async def f():\n{body}")] == lines
