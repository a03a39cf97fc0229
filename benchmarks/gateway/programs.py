"""The programs in C, compiled at first use and again when their source has changed."""

import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("native")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror")


class NoCompiler(Exception):
    """There is no C compiler here, or it does not take our source."""


@dataclass(frozen=True, slots=True)
class Programs:
    engine: Path
    load: Path


def compiled(cache: Path) -> Programs:
    """Raises NoCompiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise NoCompiler("the benchmark needs a C compiler: apt-get install gcc libc6-dev")
    folder = cache / f"native-{_fingerprint()}"
    made = Programs(folder / "engine", folder / "load")
    folder.mkdir(parents=True, exist_ok=True)
    for program in (made.engine, made.load):
        if not program.exists():
            _compile(compiler, SOURCE / f"{program.name}.c", program)
    return made


def _compile(compiler: str, source: Path, program: Path) -> None:
    # Renamed when it is whole, so that who is interrupted leaves no half program.
    half = program.with_suffix(".new")
    ran = subprocess.run(
        [compiler, *FLAGS, "-o", half, source], capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise NoCompiler(f"{compiler} does not take {source.name}: {ran.stderr[-2000:]}")
    half.rename(program)


def _fingerprint() -> str:
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for file in sorted(SOURCE.iterdir()):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
