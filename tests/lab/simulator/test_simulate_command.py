"""`pdgate simulate`, as it is typed."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from pdgate.__main__ import app

FEW = ("--calls", "60", "--prefills", "2", "--decodes", "2")


def simulate(*words: str) -> Result:
    return CliRunner().invoke(app, ["simulate", *words])


def test_it_compares_policies_without_any_file() -> None:
    result = simulate(*FEW, "--compare", "round_robin,least_loaded+random_two")

    assert result.exit_code == 0, result.output
    assert "60 calls" in result.stdout
    for name in ("round_robin", "least_loaded+random_two"):
        assert name in result.stdout


def test_figures_can_be_read_by_programs() -> None:
    result = simulate(*FEW, "--policy", "round_robin", "--scale", "1,2", "--json")

    figures = json.loads(result.stdout)
    assert [(one["policy"], one["scale"]) for one in figures] == [
        ("round_robin", 1.0),
        ("round_robin", 2.0),
    ]
    assert figures[0]["calls"] == 60
    assert 0 < figures[0]["ttft"]["p50"] <= figures[0]["ttft"]["p99"]


def test_modes_can_be_compared() -> None:
    few = (*FEW, "--calls", "200", "--scale", "6", "--policy", "slo", "--json")
    both = json.loads(simulate(*few, "--compare-modes").stdout)
    alone = [json.loads(simulate(*few, *mode).stdout)[0] for mode in ([], ["--staged"])]

    assert [one.pop("policy") for one in both] == ["slo, batch", "slo, staged"]
    assert [one.pop("policy") for one in alone] == ["slo", "slo"]
    assert both == alone
    assert both[0] != both[1]


def test_the_same_seed_prints_the_same() -> None:
    one, again, other = (
        simulate(*FEW, "--policy", "random_two", "--json", "--seed", seed).stdout
        for seed in ("3", "3", "4")
    )

    assert one == again != other


def test_pictures_are_a_page_that_needs_nothing_else(tmp_path: Path) -> None:
    result = simulate(
        *FEW,
        "--compare",
        "round_robin,least_loaded",
        "--scale",
        "1,2",
        "--out",
        str(tmp_path / "a"),
    )

    assert result.exit_code == 0, result.output
    whole = (tmp_path / "a/index.html").read_text()
    svgs = {path.stem: path.read_text() for path in (tmp_path / "a").glob("*.svg")}
    assert {"goodput", "ttft-1", "tpot-2", "busy-round_robin-1"} <= svgs.keys()
    for svg in svgs.values():
        assert svg in whole
        ElementTree.fromstring(svg)
    assert "http" not in whole.replace("http://www.w3.org/2000/svg", "")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    taken = tmp_path / "a"
    taken.write_text("a file")

    result = simulate(*FEW, "--out", str(taken))

    # Not 1: it was seen before anything was simulated.
    assert result.exit_code == 2
    assert f"--out {taken} cannot be made: File exists" in result.stderr


def test_speeds_come_from_a_file(tmp_path: Path) -> None:
    slow = tmp_path / "slow.toml"
    figures = {
        "overhead_seconds": 0.1, "weights_seconds": 0, "prompt_token_seconds": 0.001,
        "call_seconds": 0, "context_token_seconds": 0, "pair_seconds": 0, "step_tokens": 8192,
        "calls": 8, "kv_tokens": 200000, "kv_bytes_per_token": 1,
        "link_bytes_per_second": 1e9, "link_seconds": 0,
    }  # fmt: skip
    slow.write_text("".join(f"{name} = {value}\n" for name, value in figures.items()))

    found = json.loads(simulate(*FEW, "--engine", str(slow), "--json").stdout)

    assert found[0]["tpot"]["p50"] == pytest.approx(0.1, rel=0.01)


def test_single_figures_of_an_engine_can_be_others() -> None:
    figures = ("--engine-figure", "overhead_seconds=0.1", "--engine-figure", "kv_tokens=300000")
    found = json.loads(simulate(*FEW, *figures, "--json").stdout)

    assert found[0]["tpot"]["p50"] == pytest.approx(0.1, rel=0.2)


def test_engines_may_do_either_and_may_be_killed() -> None:
    engines = ("--prefills", "0", "--decodes", "0", "--both", "3", "--engine-speed", "0.2")
    found = json.loads(simulate("--calls", "60", *engines, "--kill", "b1@8-12", "--json").stdout)

    assert found[0]["retried"] > 0
    assert found[0]["calls"] == 60


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--trace", "nowhere.jsonl"], "there is no trace nowhere.jsonl"),
        (["--policy", "least_lo"], "no policy is called 'least_lo'"),
        (["--compare", "round_robin,"], "no policy is called ''"),
        (["--compare", "round_robin", "--decode-policy", "slo"], "--compare names the policies"),
        (["--scale", "1,x"], "--scale needs numbers"),
        (["--scale", "0"], "--scale needs numbers above 0"),
        (["--engine", "9b"], "neither one of 8b, 70b nor a file"),
        (["--engine-speed", "0"], "--engine-speed must be a number above 0"),
        (["--engine-speed", "inf"], "--engine-speed must be a number above 0"),
        (["--engine-figure", "kv=9"], "--engine-figure kv=9: there are overhead_seconds, "),
        (["--engine-figure", "calls=1.5"], "it takes a whole number"),
        (["--engine-figure", "link_seconds"], "it takes a number"),
        (["--engine-figure", "calls=0"], "must have room for a call"),
        (["--engine-figure", "call_seconds=nan"], "can be negative, or without end"),
        (["--decodes", "0"], "it takes a prefill engine and a decode engine"),
        (["--prefills", "0", "--decodes", "0", "--both", "1"], "or two that do --both"),
        (["--both", "2", "--kill", "b2@9"], "there is no engine b2"),
        (["--kill", "p0"], "--kill needs something like p0@600-900"),
        (["--kill", "p0@9-3"], "it ends before it begins"),
        (["--kill", "d8@9"], "there is no engine d8"),
        (["--ttft-target", "0"], "targets must be above 0"),
        (["--ttft-target", "nan"], "targets must be above 0"),
    ],
)
def test_a_bad_flag_is_one_sentence(words: list[str], sentence: str) -> None:
    result = simulate(*words)

    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 5}\n')

    result = simulate("--trace", str(trace))

    assert result.exit_code == 2
    assert "t.jsonl, line 1: Object missing required field `hash_ids`" in result.stderr


def test_the_bound_is_said_and_drawn(tmp_path: Path) -> None:
    few = (*FEW, "--scale", "1,8", "--policy", "round_robin", "--bound")
    said = simulate(*few, "--out", str(tmp_path))
    slow, fast = json.loads(simulate(*few, "--json").stdout)

    assert said.exit_code == 0, said.output
    assert said.stdout.count("in time at most with any policy") == 2
    assert "capacity: scale" in said.stdout
    assert ">bound<" in (tmp_path / "goodput.svg").read_text()
    for one in (slow, fast):
        assert one["goodput"] * 60 <= one["bound"]["in_time"] <= one["bound"]["possible"] <= 60
