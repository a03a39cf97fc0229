"""Commands that cannot start an engine are refused before they are tried, with the sentence of the start itself."""

import json

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.engine.command_check import why_not

SERVE = "vllm serve M --kv-transfer-config"
EXTRA = {"transfer": "tcp", "kv_secret_file": "/secret", "host": "0.0.0.0"}


def vllm(flags: str = "", extra: dict[str, object] | None = None, **config: object) -> str:
    said = {
        "kv_connector": "PdgateConnector",
        "kv_connector_module_path": "pdgate.engine.vllm.connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": EXTRA if extra is None else extra,
        **config,
    }
    return f"{SERVE} '{json.dumps(said)}' {flags}"


def engine(flags: str) -> str:
    return f"pdgate engine --role prefill {flags}"


@pytest.mark.parametrize(
    "command",
    [
        engine("--pdd-protocol vllm-kvt --tp 2 --pp 3"),
        "PDGATE_KV_SECRET=s .venv/bin/python -m pdgate.engine.cli --role both --pdd-protocol vllm-nixl --kv-host 0.0.0.0",
        "pdgate engine",
        "python3 -m pdgate engine",
        vllm(),
        vllm("-tp 8 --pipeline-parallel-size=2 --ubatch-size 1"),
        vllm("--data-parallel-size 4", kv_port=65532),
        f"VLLM_CPU_KVCACHE_SPACE=1 {vllm(extra={'transfer': 'mooncake'})}",
        f"PDGATE_KV_SECRET_FILE=/s {vllm(extra={'host': '0.0.0.0'})}",
        f'{SERVE}=\'{{"kv_connector": "NixlConnector", "kv_role": "kv_both"}}\'',
        "/usr/bin/vllm serve M",
    ],
)
def test_what_starts_is_not_refused(command: str) -> None:
    assert why_not(command) == []


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (engine("--pdd-protocol vllm-kvt --pp 4"), "3 layers cannot be split over 4 pipeline"),
        (engine("--pdd-protocol vllm-kvt --tp 3"), "4 heads cannot be split evenly over tp 3"),
        (engine("--pdd-protocol neuron --pp 2"), "neuron knows no pipeline stages: pp 2"),
        (engine("--pdd-protocol gone"), "no protocol is called 'gone'"),
        (engine("--pdd-protocol vllm-kvt --transfer gone"), "no transfer backend is called 'gone'"),
        (engine("--pdd-protocol decode-first"), "needs a prefill queue"),
        (engine("--pdd-protocol vllm-kvt --kv-host 0.0.0.0"), "without a KV secret"),
        ("pdgate engine --role both --pdd-protocol sglang", "prefill or decode, not both"),
        ("pdgate engine --pp 2", "a plain engine hands nothing over"),
        ("pdgate engine --gone", "No such option: --gone"),
        (
            engine("--pdd-protocol vllm-kvt --tp 2 --transfer-option port=9000"),
            "leave the transfer option port=9000 out",
        ),
        (vllm("--enable-sleep-mode"), "does not go with --enable-sleep-mode"),
        (vllm("-dcp 2"), "--decode-context-parallel-size is 2"),
        (vllm("--enable-dbo"), "knows no microbatches (--enable-dbo"),
        (vllm("--ubatch-size 2"), "knows no microbatches (--enable-dbo, --ubatch-size"),
        (vllm("--nnodes=2"), "--nnodes is 2"),
        (vllm("-dp 4", kv_port=65533), "kv_port must be a port, not 65536"),
        (vllm(extra={**EXTRA, "transfer": "mooncake"}), "by rdma alone"),
        (vllm(extra={"host": "0.0.0.0"}), "without a KV secret"),
        (vllm(extra={**EXTRA, "mode": "sideways"}), "mode must be one of"),
        (vllm(extra={**EXTRA, "gone": 1}), "has no 'gone'"),
        (vllm(kv_role=""), "kv_role must be one of"),
        (vllm(kv_connector_module_path="a.b"), "by kv_connector_module_path"),
        (
            vllm("-tp 2", {**EXTRA, "queue": "redis://r:6379/0"}, kv_role="kv_consumer"),
            "for engines of one worker",
        ),
        (f"{SERVE} '{{'", "is no JSON"),
        (f"{SERVE} '[]'", "is no object"),
        (vllm(kv_connector_extra_config=[]), "is no object"),
    ],
)
def test_what_cannot_start_is_refused_by_name(command: str, why: str) -> None:
    (said,) = why_not(command)

    assert why in said


@pytest.mark.parametrize("command", ["", "'", "python -m sglang.launch_server", "pdgate serve"])
def test_a_command_of_another_program_is_not_judged(command: str) -> None:
    with pytest.raises(ValueError, match=r"is no command|starts neither"):
        why_not(command)


def doctor(*args: str) -> tuple[int, str, str]:
    told = CliRunner().invoke(app, ["doctor", *args])
    return told.exit_code, told.stdout, told.stderr


def test_the_doctor_names_the_command_and_what_stands_against_it() -> None:
    wrong, right = engine("--pdd-protocol neuron --pp 2"), engine("--pdd-protocol vllm-kvt")

    code, said, _ = doctor("--start", wrong, "--start", right, "--json")

    (found,) = json.loads(said)["findings"]
    assert code == 1
    assert found["check"] == "cannot_start"
    assert found["instances"] == [wrong]
    assert found["found"] == "neuron knows no pipeline stages: pp 2"
    assert doctor("--start", right)[:1] == (0,)
    assert doctor("--start", "ls")[0] == 2
    assert "starts neither" in doctor("--start", "ls")[2]


def test_an_engine_says_it_of_itself() -> None:
    flags = ("engine", "--role", "prefill", "--pdd-protocol", "neuron", "--check")

    told = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*flags, "--pp", "2"])

    assert told.exit_code == 2
    assert "neuron knows no pipeline stages: pp 2" in told.stderr
    assert CliRunner().invoke(app, flags).exit_code == 0
