"""A virtual environment for one gateway, so that it brings what it likes."""

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from benchmarks.gateway.targets.base import NotInstalled

INSTALL_SECONDS = 900


def install(folder: Path, *requirements: str, environment: Mapping[str, str] | None = None) -> None:
    """Raises NotInstalled."""
    done = folder / "installed"
    asked = "\n".join(requirements)
    if done.exists() and done.read_text(encoding="utf-8") == asked:
        return
    run(sys.executable, "-m", "venv", "--clear", str(folder))
    run(
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        *requirements,
        environment=environment,
    )
    done.write_text(asked, encoding="utf-8")


def run(*command: str, environment: Mapping[str, str] | None = None) -> None:
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=INSTALL_SECONDS,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"not done after {INSTALL_SECONDS} s") from None
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or ["it did not say why"]
        raise NotInstalled(said[-1])
