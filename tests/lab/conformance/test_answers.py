"""How strictly answers are read, and how the results are told."""

import json
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from pdgate.__main__ import app
from pdgate.lab.conformance import Check, Report, Result, Verdict
from pdgate.lab.conformance.answer import MalformedAnswer, difference, streamed, whole
from pdgate.lab.conformance.site import Site


def events(*said: object) -> list[bytes]:
    return [
        b"data: " + (one if isinstance(one, bytes) else json.dumps(one).encode()) + b"\n\n"
        for one in said
    ]


def piece(text: str = "", finish: str | None = None, index: int = 0) -> dict[str, object]:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish}]}


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
DONE = b"[DONE]"


def test_a_stream_is_what_its_pieces_say_together() -> None:
    found = streamed(events(piece("a"), piece("b"), piece("", "length"), USAGE, DONE))

    assert (found.only.text, found.only.finish, found.usage) == ("ab", "length", (1, 2, 3))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ([piece("a", "stop")], "without [DONE]"),
        ([piece("a"), DONE], "no finish_reason"),
        ([piece("a", "stop"), piece("b"), DONE], "goes on after its finish_reason"),
        ([piece("a", "stop"), piece("", "stop"), DONE], "two finish reasons"),
        ([ROLE, ROLE, piece("", "stop"), DONE], "says twice who speaks"),
        ([piece("a", "stop"), USAGE, USAGE, DONE], "usage 2 times"),
        ([piece("a", "stop"), DONE, piece()], "goes on after [DONE]"),
        ([{"error": {"message": "gone"}}, DONE], "has an error in it"),
        ([b"{", DONE], "no JSON"),
        ([{}, DONE], "no choices"),
        ([{"choices": [{"text": "a"}]}, DONE], "no index"),
    ],
)
def test_a_stream_that_no_client_could_read_is_named(said: list[object], why: str) -> None:
    with pytest.raises(MalformedAnswer) as caught:
        streamed(events(*said))

    assert why in str(caught.value)


def test_what_differs_is_said() -> None:
    one, other = (
        whole({"choices": [{"index": 0, "text": text, "finish_reason": "stop"}]}) for text in "ab"
    )

    assert difference(one, one) == ""
    assert difference(one, other) == "text of choice 0 is 'a' and not 'b'"


async def nothing(_: Site) -> None:
    pass


def report() -> Report:
    results = (
        Result(Check("one", "It works.", nothing), Verdict.PASS, "", 0.5),
        Result(Check("two", "It holds.", nothing), Verdict.FAIL, "it < does & not", 1.0),
        Result(Check("three", "It may be.", nothing), Verdict.NOT_APPLICABLE, "no engine", 0.0),
    )
    return Report("brook", "batch", "", results)


def test_ci_reads_the_results_as_junit() -> None:
    (suite,) = ElementTree.fromstring(report().junit())

    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    passed, failed, skipped = suite
    assert list(passed) == []
    assert failed[0].get("message") == "it < does & not"
    assert skipped[0].tag == "skipped"


def test_programs_read_the_results_as_json() -> None:
    told = report().as_json()

    assert told["passed"] is False
    assert [one["verdict"] for one in told["checks"]] == ["pass", "fail", "not applicable"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--pdd-protocol", "vllm-nixi"], "did you mean vllm-nixl?"),
        (["--pdd-protocol", "vllm-mooncake"], "needs a generation"),
        (["--pdd-protocol", "sglang", "--mode", "staged"], "cannot do staged"),
        (["--pdd-protocol", "sglang", "--generation", "x"], "sglang: it has none to name"),
        (["--pdd-protocol", "neuron", "--generation", "x"], "there are zmq, static, nixl"),
        (["--pdd-protocol", "vllm-mooncake", "--generation", "x"], "there are a, b, c, d"),
        (["--pdd-protocol", "sglang", "--alone", "http://a:port"], "is no URL"),
        (["--pdd-protocol", "sglang", "--check", "sed"], "did you mean seeds?"),
        (["--pdd-protocol", "sglang", "--prefill", "http://a"], "--prefill without --decode"),
        (["--pdd-protocol", "sglang", "--decode", "http://a"], "--decode without --prefill"),
        (["--pdd-protocol", "sglang", "--gateway", "http://a"], "name the engines behind it"),
        (["--pdd-protocol", "sglang", "--alone", "localhost:1"], "is no URL"),
        (["--pdd-protocol", "decode-first", "--queue", "x"], "--queue"),
        (["--pdd-protocol", "sglang", "--junit", "no/such/x"], "there is no folder"),
        (
            [
                "--pdd-protocol",
                "sglang",
                "--prefill",
                "http://127.0.0.1:9",
                "--decode",
                "http://127.0.0.1:9",
            ],
            "nobody answers at http://127.0.0.1:9",
        ),
    ],
)
def test_a_wrong_flag_is_one_sentence(words: list[str], sentence: str) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["conformance", *words])

    assert result.exit_code == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.output
