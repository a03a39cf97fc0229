"""Rules of a start, by a whole command line, as `pdgate doctor --start` asks for them.

[NAME=value ...] pdgate engine FLAGS        python -m pdgate.engine.cli FLAGS
[NAME=value ...] vllm serve MODEL FLAGS     python -m vllm.entrypoints.openai.api_server FLAGS
"""

import re
import shlex
from typing import Final

import typer

from pdgate.engine.cli import engine
from pdgate.engine.vllm import command as vllm
from pdgate.transfer.runtime.fleet import FILE_VARIABLE, SECRET_VARIABLE

ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
ENGINE: Final = (("pdgate", "engine"), ("-m", "pdgate", "engine"), ("-m", "pdgate.engine.cli"))
VLLM: Final = (("vllm", "serve"), ("-m", "vllm.entrypoints.openai.api_server"))


def why_not(command: str) -> list[str]:
    """Return a sentence for each thing that stands against it. Raise ValueError for no command of an engine."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"{command!r} is no command: {error}") from None
    environment = {}
    while words and (found := ASSIGNMENT.fullmatch(words[0])):
        environment[found[1]] = found[2]
        words = words[1:]
    # A path of the program, and of its Python, is as good as its name.
    begins = [words[0].rpartition("/")[2], *words[1:]] if words else []
    if begins and begins[0].startswith("python"):
        begins = begins[1:]
    for names in ENGINE:
        if tuple(begins[: len(names)]) == names:
            named = any(environment.get(name) for name in (FILE_VARIABLE, SECRET_VARIABLE))
            return _of_ours(begins[len(names) :], secret_named=named)
    for names in VLLM:
        if tuple(begins[: len(names)]) == names:
            return list(vllm.why_not(begins[len(names) :], environment))
    raise ValueError(
        f"{command!r} starts neither `pdgate engine` nor `vllm serve`, whose starts are known"
    )


def _of_ours(words: list[str], *, secret_named: bool) -> list[str]:
    app = typer.Typer(add_completion=False)
    app.command()(engine)
    # Which file it is does not matter: it lies where the engine will run.
    secret = ["--kv-secret-file", "named in the environment"] if secret_named else []
    try:
        typer.main.get_command(app).main(
            [*secret, *words, "--check"], "pdgate engine", standalone_mode=False
        )
    except Exception as error:
        # Of click, or of the copy of it that typer brings along.
        if "ClickException" not in {each.__name__ for each in type(error).__mro__}:
            raise
        return [str(getattr(error, "message", error))]
    return []
