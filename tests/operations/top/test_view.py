"""A picture fits the terminal, whatever its size, and says what is wrong."""

from typing import Any

import pytest
from rich.console import Console

from pdgate.operations.top.view import TopView
from tests.operations.top.a_picture import call, engine, picture


def drawn(shown: dict[str, Any] | None, width: int = 120, height: int = 40, **more: Any) -> str:
    view = TopView("http://gateway:8000")
    view.picture = shown
    for name, value in more.items():
        setattr(view, name, value)
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(view, height=height)
    return capture.get()


@pytest.mark.parametrize("size", [(200, 60), (130, 40), (80, 24), (50, 20), (40, 16)])
def test_it_fits_with_many_engines_and_calls(size: tuple[int, int]) -> None:
    width, height = size
    engines = [engine(f"engine-with-a-long-name-{n}", "prefill") for n in range(50)]
    calls = [call(f"a-call-with-a-long-name-{n}", "over") for n in range(60)]
    full = picture(instances=engines, calls={"running": [], "ended": calls})

    lines = drawn(full, width, height).splitlines()

    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    assert any("TTFT" in line for line in lines)


@pytest.mark.parametrize("width", [96, 100, 130])
def test_long_names_are_cut_and_no_number_and_no_head(width: int) -> None:
    load = {"waiting": 0, "step_seconds": 0.123, "kv_free": 0.5}
    one = engine("http://127.0.0.1:40123", "prefill", state="slow_start", load=load)

    lines = drawn(picture(instances=[one]), width).splitlines()

    head = next(line.split() for line in lines if line.startswith("engine"))
    assert head[:9] == ["engine", "role", "state", "calls", "to", "read", "waits", "step", "KV"]
    row = next(line for line in lines if line.startswith("http://127"))
    assert "slow start" in row
    assert "123 ms" in row
    assert "50%" in row


def test_it_tells_engines_calls_kv_and_latencies() -> None:
    said = drawn(picture())

    assert "2 calls in flight (1 waits, 1 KV crosses)" in said
    assert "KV held 1   stranded 2 (5 ever)" in said
    assert "serving  2 workers" in said
    rows = [line.split() for line in said.splitlines()]
    assert ["p-0", "prefill", "up", "3", "123k", "-", "-", "?"] in rows
    assert next(row for row in rows if row[:1] == ["d-0"])[2:7] == ["up", "3", "123k", "1", "20"]
    assert "75%" in said
    assert "p-0: KV of 2 prompts stranded" in said
    assert "p50 80 ms, p95 160 ms" in said
    assert [
        "now",
        "2",
        "s",
        "p-0",
        "→",
        "d-0",
        "disaggregated",
        "88",
        "ms",
        "KV",
        "crosses",
    ] in rows
    assert next(row for row in rows if row[:1] == ["broken"])[-2:] == ["engine", "failed"]


def test_who_is_not_well_is_shown_where_not_all_can_be() -> None:
    engines = [engine(f"e-{n:02}", "prefill") for n in range(50)]
    engines[40] = engine("broken", "decode", state="ejected")

    said = drawn(picture(instances=engines), 80, 24)

    assert "broken" in said
    assert "ejected" in said


def test_prefill_stands_before_decode() -> None:
    said = drawn(picture())

    assert said.index("p-0  ") < said.index("d-0  ")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"draining": True}, "draining: no new calls"),
        (
            {"ready": False, "missing": [{"role": "decode", "why": "none is up"}]},
            "not ready, decode: none is up",
        ),
        ({"workers": {"told": 2, "silent": 1}}, "2 workers, 1 silent"),
    ],
)
def test_what_is_wrong_is_said_first(more: dict[str, Any], said: str) -> None:
    assert said in drawn(picture(**more)).splitlines()[1]


def test_a_wide_terminal_has_room_for_who_hands_over_to_whom() -> None:
    running = [
        call("a", "crossing"), call("b", "crossing"), call("c", "answering"),
        call("d", "answering", prefill="p-1"), call("e", "prefill", decode=""),
    ]  # fmt: skip
    shown = picture(calls={"running": running, "ended": []})

    said = " ".join(drawn(shown, 140).split())
    assert "p-0 ━●●━━━━▶ d-0 2 cross, 1 answers" in said
    assert "p-1 ━━━━━━━▶ d-0 1 answers" in said
    assert "▶" not in drawn(shown, 100)


def test_names_are_never_markup() -> None:
    strange = engine("[red]x[/nothing]", "plain")
    calls = {"running": [], "ended": [call("[/]", "over", decode="[link=x]y")]}

    said = drawn(picture(instances=[strange], calls=calls))

    assert "[red]x[/nothing]" in said
    assert "[/]" in said
    assert "[link=x]y" in said


def test_without_an_answer_the_last_picture_stays_and_is_said_to_be_old() -> None:
    said = drawn(picture(), away=("connection refused", 1000.0), now=1008.0)

    assert "away for 8 s" in said
    assert "connection refused; trying again" in said
    assert "p-0" in said
    assert "away for 8 s" in drawn(None, away=("refused", 1000.0), now=1008.0)
