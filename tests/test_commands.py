"""All commands together: what their list says, what they load, how they complete, how they refuse."""

import inspect
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from pdgate.__main__ import COMMANDS, app, loaded

ASKED: dict[str, tuple[str, ...]] = {
    "prefill-worker": (
        *("--queue", "redis://127.0.0.1:9/0", "--model", "m"),
        *("--engine", "http://127.0.0.1:9", "--kv", "127.0.0.1:9"),
    ),
    "replay": ("--trace", "gone.jsonl", "--url", "http://127.0.0.1:9"),
    "conformance": ("--pdd-protocol", "plain"),
    "explain": ("call-1",),
    "batch": ("gone.jsonl",),
    "key": ("a",),
}
"""Commands that insist on something."""


def said_by(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pdgate", *args],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        check=False,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_begins_with(name: str) -> None:
    own = inspect.cleandoc(loaded(name).help or "").partition("\n\n")[0]

    assert COMMANDS[name].help == " ".join(own.split())


def test_the_list_of_commands_loads_none_of_them() -> None:
    said = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pdgate", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()}

    assert all(name in said.stdout for name in COMMANDS)
    assert {name for name in imported if name.startswith("pdgate")} == {"pdgate"}


def test_serving_loads_no_other_command() -> None:
    script = (
        "import sys; sys.argv[1:] = ['serve', '--config', 'gone.toml']\n"
        "from pdgate.__main__ import main\n"
        "try: main()\n"
        "finally: print(sorted({'.'.join(name.split('.')[:2]) for name in sys.modules"
        " if name.startswith('pdgate.')}))\n"
    )

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert said.returncode == 2, said.stderr
    for folder in ("lab", "operations", "engine", "transfer"):
        assert f"pdgate.{folder}" not in said.stdout


@pytest.mark.parametrize(
    ("shell", "env"),
    [
        ("bash", {"COMP_WORDS": "pdgate {}", "COMP_CWORD": "{n}"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "pdgate {}"}),
        (
            "fish",
            {"_TYPER_COMPLETE_ARGS": "pdgate {}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        ),
    ],
)
@pytest.mark.parametrize(
    ("typed", "offered"),
    [("si", "simulate"), ("engine --ro", "--role"), ("serve --decode-p", "--decode-policy")],
)
def test_shells_complete_commands_and_their_flags(
    shell: str, env: dict[str, str], typed: str, offered: str
) -> None:
    words = {key: value.format(typed, n=len(typed.split())) for key, value in env.items()}

    said = said_by(env={**words, "_PDGATE_COMPLETE": f"complete_{shell}"})

    assert offered in said.stdout, said.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_each_shell_is_shown(shell: str) -> None:
    # Tells typer which shell asks, where there is none above us.
    said = said_by(
        "--show-completion", shell, env={"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    )

    assert said.returncode == 0, said.stderr
    assert f"complete_{shell}" in said.stdout


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["serv"], "serve"), (["simulat"], "simulate"), (["serve", "--por", "1"], "--port")],
)
def test_what_is_misspelt_ends_with_2_and_the_nearest_name(typed: list[str], meant: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, typed)

    assert result.exit_code == 2
    assert meant in result.stderr


def typed(*args: str) -> Result:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, args)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def flags(name: str, *kinds: type) -> Iterator[str]:
    """Those whose value is one of these."""
    function = COMMANDS[name].function
    module, _, attribute = function.partition(":")
    called = getattr(sys.modules.get(module) or __import__(module, fromlist=["_"]), attribute)
    for parameter in inspect.signature(called, eval_str=True).parameters.values():
        told: Any = getattr(parameter.annotation, "__origin__", parameter.annotation)
        if told in kinds or {*getattr(told, "__args__", ())} & {*kinds}:
            yield f"--{parameter.name.replace('_', '-')}"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_number_that_is_none_ends_with_2_and_the_flags_name(name: str) -> None:
    for flag in flags(name, int, float):
        result = typed(name, *ASKED.get(name, ()), flag, "x")

        assert (result.exit_code, result.stdout) == (2, "")
        assert flag in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_flag_ends_with_2(name: str) -> None:
    result = typed(name, *ASKED.get(name, ()), "--no-such-flag")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "--no-such-flag" in result.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["serve", "--config", "{folder}"], "Is a directory"),
        (["serve", "--port", "-1"], "'listen.port' should be greater than or equal to 0"),
        (["engine", "--port", "65536"], "65536 is no port"),
        (["engine", "--kv-events-port", "-1"], "-1 is no port"),
        (["engine", "--model", "{folder}"], "it has no config.json"),
        (["engine", "--blocks", "0"], "must be positive"),
        (["engine", "--role", "prefil"], "Invalid value for '--role'"),
        (["engine", "--log-level", "loud"], "Invalid value for '--log-level'"),
        (["engine", "--lease-seconds", "nan"], "lease"),
        (["prefill-worker", "--log-level", "loud"], "Invalid value for '--log-level'"),
        (["prefill-worker", "--queue", "http://a"], "a queue is redis://"),
        (["prefill-worker"], "Missing option"),
        (["demo", "--prefills", "0"], "--prefills 0: it takes at least one"),
        (["demo", "--port", "70000"], "--port 70000 cannot be had"),
        (["demo", "--model", "{folder}"], "there is no config.json"),
        (["protocols", "more"], "Got unexpected extra argument"),
        (["key", "a b"], "name"),
        (["key", ""], "name"),
        (["key"], "Missing argument"),
        (["chaos", "--config", "{folder}"], "{folder}"),
        (["chaos", "--config", "gone.toml"], "gone.toml"),
        (["chaos", "--engine", "http://127.0.0.1:9", "--fault", "cut", "--chance", "2"], "chance"),
        (["simulate", "--trace", "{folder}"], "cannot be read: Is a directory"),
        (["simulate", "--trace", "{binary}"], "line 1: "),
        (["simulate", "--engine", "{binary}"], "is no TOML"),
        (["replay", "--trace", "{folder}", "--url", "http://a"], "cannot be read: Is a directory"),
        (["replay", "--trace", "{binary}", "--url", "http://a"], "line 1: "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_said_in_a_sentence(
    args: list[str], sentence: str, tmp_path: Path
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(bytes(range(128, 256)))
    places = {"folder": str(tmp_path), "binary": str(binary)}
    name, *more = (word.format(**places) for word in args)
    asked = ASKED.get(name, ()) if len(more) == 2 and name == "prefill-worker" else ()

    result = typed(name, *asked, *more)

    assert (result.exit_code, result.stdout) == (2, "")
    # Terminals break lines where they end.
    assert sentence.format(**places) in " ".join(result.stderr.split())


@pytest.mark.parametrize("columns", [80, 119, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_flags_whole_however_narrow_the_terminal(
    name: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    said = CliRunner().invoke(app, [name, "--help"]).stdout
    flags = {flag for one in loaded(name).params for flag in (*one.opts, *one.secondary_opts)}

    assert [flag for flag in flags if flag.startswith("--") and flag not in said] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("name", ["protocols", "key", "simulate"])
def test_a_full_disk_behind_the_output_is_a_sentence(name: str) -> None:
    more = {"key": ("a",), "simulate": ("--calls", "20")}.get(name, ())
    with Path("/dev/full").open("w") as full:
        said = subprocess.run(
            [sys.executable, "-m", "pdgate", name, *more],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith("pdgate: the output cannot be written: No space")
    assert "Traceback" not in said.stderr


def test_an_engine_whose_port_is_taken_says_who_speaks_and_which_address_it_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = said_by("engine", "--port", str(port))

    assert said.returncode == 1
    assert said.stderr.startswith("pdgate engine: the engine could not start: ")
    assert f"('127.0.0.1', {port})" in said.stderr
    assert "Traceback" not in said.stderr
