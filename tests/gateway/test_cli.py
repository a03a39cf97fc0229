"""The command line: flags reach the settings, and what is wrong ends with a sentence."""

import inspect
import json
import re
import shlex
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.forwarders.base import Mode
from pdgate.gateway import service
from pdgate.gateway.cli import flags as cli_flags
from pdgate.gateway.cli.serve import serve
from pdgate.gateway.config import ConfigError, Settings
from pdgate.gateway.config.checks import check
from pdgate.gateway.config.complaints import known_keys
from pdgate.gateway.config.setting import Section, declared

SECTIONS = (
    "listen",
    "timeouts",
    "health",
    "drain",
    "engine_metrics",
    "disaggregation",
    "targets",
    "adaptive",
    "prefix_index",
    "kv_events",
    "admission",
    "callbacks",
    "batch",
    "control",
    "epp",
    "jwt",
    "jwt.tenants",
    "shares",
    "tls",
    "engine_tls",
    "tracing",
    "instances",
    "models",
    "api_keys",
)


def pdgate(*args: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    # Wide, so that no sentence is cut where a terminal would end.
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, args)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_the_version_comes_without_the_web_framework() -> None:
    """`--version` and completion must be quick."""
    script = (
        "import sys; sys.argv[1:] = ['--version']\n"
        "from pdgate.__main__ import main\n"
        "try: main()\n"
        "finally: print(sorted({'fastapi', 'pydantic', 'numpy', 'httpx2'} & set(sys.modules)))\n"
    )

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.splitlines()

    assert said[0].startswith("pdgate ")
    assert said[1] == "[]"


def test_the_version_says_whether_the_hot_path_is_compiled() -> None:
    compiled = Path(service.__file__).suffix == ".so"

    code, said, _ = pdgate("--version")

    assert (code, said) == (0, f"pdgate {version('pdgate')}{' (compiled)' if compiled else ''}\n")


TABLES = ("instances.", "models.", "api_keys.", "jwt.tenants.", "shares.")


def test_every_setting_has_a_flag_with_help_and_a_reload_rule() -> None:
    """Tables of engines, models, keys, tenants and shares have no flag of their own."""
    settings = {one.key: one for one in declared(Settings)}
    keys = set(known_keys(Settings)) - set(SECTIONS)
    keys -= {key for key in keys if key.startswith(TABLES)}
    flags = set(inspect.signature(serve).parameters) - {"config", "compat", *cli_flags.ENGINE_FLAGS}

    assert {key for key, one in settings.items() if one.flag} == keys
    assert {cli_flags.SETTINGS[flag].key for flag in flags} == keys
    assert [key for key, one in settings.items() if not one.help] == []
    assert [one.key for one in settings.values() if one.flag and not one.panel] == []


def test_no_two_settings_have_one_flag() -> None:
    flags = [one.flag for one in declared(Settings) if one.flag]

    assert len(flags) == len({*flags})


def test_a_key_that_declares_no_setting_is_refused() -> None:
    class Wrong(Section):
        forgotten: int = 1

    with pytest.raises(TypeError, match=r"Wrong\.forgotten declares no Setting"):
        list(declared(Wrong))


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        ("--port", "8000"), ("--ttft-target", "5"), ("--tpot-target", "0.1"), ("--console", "yes"),
        ("--resume", "no"), ("--scheduling-mode", "batch if it can"), ("--etcd", ""),
        ("--kv-wait-timeout", ""), ("--directory-option", ""), ("--prefill-timeout", "600"),
        ("--on-prefill-failure", "retry_then_recompute"),
    ],
)  # fmt: skip
def test_help_shows_the_default_of_the_setting(flag: str, shown: str) -> None:
    parameter = inspect.signature(serve).parameters[cli_flags.parameter_of(flag)]

    assert (parameter.annotation.__metadata__[0].show_default or "") == shown


def test_flags_become_keys() -> None:
    flags = {
        "port": 1,
        "debug_routes": False,
        "idle_timeout": 2.0,
        "host": None,
        "instance": ["role=decode,url=http://c"],
        "prefill": ["http://a", "http://b"],
        "decode": [],
        "plain": None,
    }

    assert cli_flags.overrides(flags) == {
        "listen.port": 1,
        "debug_routes": False,
        "timeouts.idle_seconds": 2.0,
        "instances": [
            {"role": "decode", "url": "http://c"},
            {"role": "prefill", "url": "http://a"},
            {"role": "prefill", "url": "http://b"},
        ],
    }


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--pdd-protocol", "sgl"], "no protocol is called 'sgl'; there are "),
        (["--decode", "nonsense"], "'instances[0].url': 'nonsense' is not a URL"),
        (["--instance", "role"], "--instance 'role': 'role' is not of the form key=value"),
        (["--port", "70000"], "'listen.port' should be less than or equal to 65535"),
        (["--port", "x"], "Invalid value for '--port'"),
        (["--config", "gone.toml"], "gone.toml: No such file"),
        (["--scheduling-mode", "both"], "Invalid value for '--scheduling-mode'"),
        (
            ["--pdd-protocol", "neuron", "--scheduling-mode", "staged"],
            "neuron generation zmq cannot do staged scheduling: both legs start together",
        ),
        (
            [
                "--scheduling-mode",
                "staged",
                "--instance",
                "role=decode,url=http://d,protocol=neuron,generation=static",
            ],
            "'decode-0': neuron generation static cannot do staged scheduling",
        ),
        (["--prot", "1"], "--port"),
    ],
)
def test_serve_refuses_with_a_sentence_and_exit_code_2(args: list[str], sentence: str) -> None:
    code, _, said = pdgate("serve", *args)

    assert code == 2
    assert sentence in said
    assert "Traceback" not in said


@pytest.mark.parametrize("flag", ["--port", "--admin-listen"])
def test_a_port_that_is_taken_is_a_sentence_and_worth_another_start(
    flag: str, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-the-operators")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        where = {
            "--port": ("--port", port),
            "--admin-listen": ("--port", "0", "--admin-listen", f"127.0.0.1:{port}"),
        }[flag]
        command = [sys.executable, "-m", "pdgate", "serve", "--plain", "http://127.0.0.1:9"]
        said = subprocess.run(
            [*command, "--admin-token-file", str(token), *where],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    # Not 2, after which systemd would leave it: who has the port may be about to go.
    assert said.returncode == 1
    assert f"pdgate serve: cannot listen on 127.0.0.1:{port}: Address already in use" in said.stderr
    assert f"{flag} names another" in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(
            ">/dev/full",
            marks=pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full"),
        ),
        ">&-",
    ],
)
def test_a_gateway_serves_where_nobody_can_read_that_it_listens(output: str) -> None:
    """A full disk for logs is no reason not to come back."""
    serve = shlex.join([sys.executable, "-m", "pdgate", "serve", "--port", "0"])
    with subprocess.Popen(
        ["/bin/sh", "-c", f"exec {serve} {output}"], stderr=subprocess.PIPE, text=True
    ) as serving:
        assert serving.stderr is not None
        said = iter(serving.stderr.readline, "")
        assert any("Application startup complete" in line for line in said)
        serving.terminate()
        serving.communicate(timeout=60)

    assert serving.returncode == 0


def test_a_gateway_without_engines_says_so() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "pdgate", "serve", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        assert "listens on" in serving.stdout.readline()
        serving.terminate()
        said = serving.communicate(timeout=60)[1]

    assert "there are no engines, and no directory to find any in" in said


def test_protocols_tells_modes_and_reasons() -> None:
    code, said, _ = pdgate("protocols")

    assert code == 0
    assert "sglang cannot do staged scheduling: both legs start together" in said
    assert "neuron zmq cannot do staged scheduling: both legs start together" in said
    assert re.search(r"^neuron nixl +batch, staged +pdgate", said, re.MULTILINE)
    assert re.search(r"^vllm-mooncake +batch, staged +pdgate", said, re.MULTILINE)


def test_neurons_generation_decides_on_staged() -> None:
    asked = Settings(pdd_protocol="neuron", scheduling_mode=Mode.STAGED)

    check(asked.model_copy(update={"neuron_generation": "nixl"}))
    with pytest.raises(ConfigError, match="generation zmq cannot do staged"):
        check(asked)


def test_protocols_speaks_to_programs() -> None:
    _, said, _ = pdgate("protocols", "--json")

    found = {one["name"]: one for one in json.loads(said)}
    assert found["vllm-nixl"]["package"] == "pdgate"
    assert found["vllm-nixl"]["modes"]["staged"] == {"possible": True, "why_not": None}
    assert not found["sglang"]["modes"]["staged"]["possible"]
    assert found["neuron"]["generations"]["nixl"]["staged"]["possible"]
    assert not found["neuron"]["generations"]["zmq"]["staged"]["possible"]


def test_engine_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes an import fail as if the package were not there.
    monkeypatch.setitem(sys.modules, "numpy", None)
    for name in [name for name in sys.modules if name.startswith(("pdgate.engine", "numpy."))]:
        monkeypatch.delitem(sys.modules, name)

    code, _, said = pdgate("engine")

    assert code == 2
    assert "pip install '.[engine]'" in said


def test_engine_has_the_help_of_the_real_command() -> None:
    code, said, _ = pdgate("engine", "--help")

    assert code == 0
    assert "--kv-load-failure" in said


def test_demo_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    for name in ("run", "ask"):
        monkeypatch.delitem(sys.modules, f"pdgate.lab.demo.{name}", raising=False)

    code, _, said = pdgate("demo", "--port", "0")

    assert code == 2
    assert "pip install '.[demo]'" in said
