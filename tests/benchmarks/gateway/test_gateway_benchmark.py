"""What is made of what was seen, and one small run with pdgate."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from benchmarks.gateway.outcome import Outcome
    from benchmarks.gateway.report import Run
    from benchmarks.gateway.rounds import Results
    from benchmarks.gateway.scenarios import Scenario

# The benchmarks are not installed, and so are imported where a test needs them.
pytestmark = pytest.mark.source


def outcome(cpu_us: float, calls: int = 1, tokens: int = 0) -> "Outcome":
    from benchmarks.gateway.outcome import NONE, Outcome

    return Outcome(calls, calls, 1.0, tokens, cpu_us, 2048, True, NONE, NONE, NONE)


def test_an_event_costs_what_a_longer_answer_costs_more() -> None:
    from benchmarks.gateway.scenarios import SCENARIOS

    short, long = outcome(1000, calls=10, tokens=160), outcome(2600, calls=5, tokens=640)

    # 520 - 100 µs for 128 - 16 events.
    assert SCENARIOS["sparse"].figures[0].of([short, long]) == pytest.approx(420 / 112)


def test_ratios_are_taken_within_rounds() -> None:
    """Else a minute in which the machine is busy would be the gateway's that ran then."""
    from benchmarks.gateway.figures import rows
    from benchmarks.gateway.rounds import Seen

    ours = Seen([[outcome(10)], [outcome(1000)], [outcome(30)]])
    theirs = Seen([[outcome(20)], [outcome(2000)], [outcome(30)]])

    (row,) = rows({"small": {"pdgate": ours, "vllm-router": theirs}}, [small()])

    assert row.cells["pdgate"].value == 30
    assert row.cells["pdgate"].ratio == 0.5


def test_who_gave_a_wrong_answer_has_no_figure() -> None:
    from benchmarks.gateway.report import markdown
    from benchmarks.gateway.rounds import Seen

    liar = Seen([[outcome(10)]], wrong="1 of 50 answers: a token of another call")
    run = run_of({"small": {"pdgate": Seen([[outcome(77)]]), "toy": liar}})

    text = markdown(run)

    assert "| 77.0 | wrong |" in text
    assert "toy has no figure in small: 1 of 50 answers: a token of another call" in text


def test_who_is_not_there_is_named() -> None:
    from benchmarks.gateway.report import as_json, markdown
    from benchmarks.gateway.rounds import Seen

    run = run_of({"small": {"pdgate": Seen([[outcome(77)]])}}, {"smg": "not installed: no wheel"})

    assert "smg was not measured: not installed: no wheel" in markdown(run)
    assert json.loads(as_json(run))["missing"] == {"smg": "not installed: no wheel"}
    assert "NaN" not in as_json(run)


def test_an_install_that_fails_says_why() -> None:
    from benchmarks.gateway.targets.base import NotInstalled
    from benchmarks.gateway.targets.environment import run

    with pytest.raises(NotInstalled, match="no such thing"):
        run("bash", "-c", "echo first >&2; echo no such thing >&2; exit 1")


def test_every_figure_is_drawn(tmp_path: Path) -> None:
    from benchmarks.gateway.chart import draw
    from benchmarks.gateway.figures import rows
    from benchmarks.gateway.rounds import Seen

    seen = {"pdgate": Seen([[outcome(10)]]), "toy": Seen([], wrong="a token of another call")}

    draw(rows({"small": seen}, [small()]), tmp_path / "chart.png")

    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_names_every_target_and_scenario() -> None:
    from benchmarks.gateway.scenarios import SCENARIOS
    from benchmarks.gateway.targets import TARGETS

    page = (Path(__file__).parents[3] / "docs" / "performance.md").read_text(encoding="utf-8")

    for name in (*TARGETS, *SCENARIOS):
        assert f"`{name}`" in page


@pytest.mark.slow
def test_pdgate_is_measured_and_a_lie_behind_it_is_found(tmp_path: Path) -> None:
    """On real processes: first all is right, then decode swaps its answers.

    So many calls that CPU shows also where the kernel counts it in ticks of 10 ms.
    """
    from benchmarks.gateway.fleet import Cores, fleet
    from benchmarks.gateway.outcome import Wrong
    from benchmarks.gateway.programs import compiled
    from benchmarks.gateway.rounds import Plan, measure
    from benchmarks.gateway.scenarios import Figure, Load, Scenario
    from benchmarks.gateway.targets.base import folder_of
    from benchmarks.gateway.targets.pdgate import ALL_ON
    from benchmarks.gateway.trial import trial

    cpu = Figure("CPU", "µs", lambda seen: seen[0].cpu_us)
    words = "--clients 2 --calls 10 --warm 2"
    many = Load("--clients 2 --calls 500 --warm 2", {})
    few = Scenario("few", (many, Load(f"{words} --stream", {"pace_us": 100})), (cpu,))
    ALL_ON.install(folder_of(ALL_ON, tmp_path))

    with fleet(compiled(tmp_path), tmp_path, Cores()) as running:
        measured = measure(running, Plan([ALL_ON], [few], rounds=1))
        seen = measured.results["few"]["pdgate"]
        assert seen.wrong is None
        assert [one.tokens for one in seen.rounds[0]] == [0, 160]
        assert seen.rounds[0][0].cpu_us > 0

        lie = Scenario("lie", (Load(words, {"wrong": 1}),), (cpu,))
        with running.gateway(ALL_ON) as gateway, pytest.raises(Wrong, match="answers"):
            trial(running, gateway, lie)


def small() -> "Scenario":
    from benchmarks.gateway.scenarios import SCENARIOS

    return SCENARIOS["small"]


def run_of(results: "Results", missing: dict[str, str] | None = None) -> "Run":
    from benchmarks.gateway.figures import rows
    from benchmarks.gateway.fleet import Cores
    from benchmarks.gateway.report import Run

    return Run(results, rows(results, [small()]), missing or {}, 1, Cores(), (0.0, 0.0))
