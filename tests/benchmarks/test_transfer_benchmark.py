"""The benchmarks of KV transfer run, compare what arrived, and reckon as they say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# They are not installed, and so are imported where a test needs them: the wheel's tests have none.
pytestmark = pytest.mark.source


def bench(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_backends_are_measured_beside_their_baselines(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"

    shown = bench(
        *("benchmarks.transfer", "--smoke", "--rounds", "2"),
        *("--only", "shm-registered,tcp", "--json", str(figures)),
    )

    found = json.loads(figures.read_text())
    assert {one["contender"] for one in found} == {"memcpy", "shm-registered", "socket", "tcp"}
    assert all(one["gb_per_second"] > 0 and one["cpu_ms_per_mib"] > 0 for one in found)
    assert "| tcp / socket |" in shown


@pytest.mark.slow
def test_pushes_are_measured_and_drawn(tmp_path: Path) -> None:
    picture = tmp_path / "overlap.svg"

    shown = bench("benchmarks.overlap", "--smoke", "--rounds", "2", "--picture", str(picture))

    assert "| shm, smoke |" in shown
    assert "| tcp, smoke |" in shown
    assert picture.read_text().startswith("<svg")


def test_what_did_not_arrive_is_noticed() -> None:
    from benchmarks.transfer import ends
    from pdgate.transfer.base import Range

    memory = memoryview(bytearray(4096))
    calls = [[Range(1024, 2048, 64)], [Range(0, 0, 8)]]
    memory[2048 : 2048 + 64] = ends.pattern(1024, 64).tobytes()
    memory[:8] = ends.pattern(0, 8).tobytes()
    ends.verify(memory, calls)

    memory[2048 + 63] ^= 1

    with pytest.raises(AssertionError, match="remote=2048"):
        ends.verify(memory, calls)


def test_the_bytes_of_the_round_before_do_not_count() -> None:
    from benchmarks.transfer import ends
    from pdgate.transfer.base import Range

    memory = memoryview(bytearray(64))
    ends.fill(memory)

    ends.wipe(memory, [[Range(0, 8, 8)]])

    with pytest.raises(AssertionError):
        ends.verify(memory, [[Range(8, 8, 8)]])


def test_every_call_has_ranges_of_its_own_on_both_sides() -> None:
    from benchmarks.transfer import cases

    case = cases.page_case(16, 4 * cases.KIB)
    planned = cases.plan(case, cases.MIB, seed=1)

    ranges = [one for call in planned for one in call]
    assert len(planned) == 16
    assert {len(call) for call in planned} == {16}
    assert len({one.local for one in ranges}) == len({one.remote for one in ranges}) == 256
    assert all(one.local % one.length == one.remote % one.length == 0 for one in ranges)


def test_ratios_are_taken_within_a_round() -> None:
    """The second round is twice as slow for both: the machine's doing, not the backend's."""
    from benchmarks.transfer import rounds
    from benchmarks.transfer.cases import Case
    from benchmarks.transfer.contenders import CONTENDERS
    from benchmarks.transfer.pair import Measured

    case = Case("1 KiB", 1024)
    measured = {
        ("tcp", case.name): [Measured([2.0, 2.0, 9.0], 3.0), Measured([4.0], 1.0)],
        ("socket", case.name): [Measured([1.0], 1.0), Measured([2.0], 1.0)],
    }

    found = rounds.figures(CONTENDERS["tcp"], case, measured)

    assert found.ratio == (0.5, 0.5, 0.5)
    assert found.call_us == 3e6
    assert found.cpu_us_per_piece == 1e6


def test_what_is_hidden_counts_what_slows_compute_down() -> None:
    from benchmarks.overlap.prefill import Run
    from benchmarks.overlap.rounds import Round

    alone = Run([(0.0, 10.0)], [])
    at_the_end = Run([(0.0, 10.0)], [(10.0, 14.0)])

    free = Round(alone, at_the_end, Run([(0.0, 10.0)], [(5.0, 10.0)]))
    slowed = Round(alone, at_the_end, Run([(0.0, 12.0)], [(5.0, 12.0)]))
    late = Round(alone, at_the_end, Run([(0.0, 10.0)], [(9.0, 13.0)]))

    assert (free.hidden, free.before_the_end) == (1, 1)
    assert (slowed.hidden, slowed.before_the_end) == (0.5, 1)
    assert (late.hidden, late.before_the_end) == (0.25, 0.25)


def test_only_the_benchmarks_own_place_on_the_page_is_rewritten(tmp_path: Path) -> None:
    from benchmarks.transfer import results

    page = tmp_path / "RESULTS.md"
    page.write_text("before\n<!-- a -->\nold\n<!-- /a -->\n<!-- b -->\nkept\n<!-- /b -->\nafter\n")

    results.rewrite(page, "a", r"\1 new")

    assert page.read_text() == (
        "before\n<!-- a -->\n\n\\1 new\n\n<!-- /a -->\n<!-- b -->\nkept\n<!-- /b -->\nafter\n"
    )
    with pytest.raises(ValueError, match="no place for c"):
        results.rewrite(page, "c", "new")


@pytest.mark.slow
def test_devices_are_measured_and_the_fake_one_says_what_it_is_worth(tmp_path: Path) -> None:
    table = tmp_path / "device.md"

    bench("benchmarks.device", "--smoke", "--rounds", "1", "--table", str(table))

    said = table.read_text()
    assert "its figures say nothing" in said
    assert "| memory opened by another process, by handle | works | works | yes |" in said
    for what in ("cuda-ipc, 1 GiB", "2048 pages", "shm, staged", "tcp, staged", "hidden", "thread"):
        assert what in said


def test_without_a_gpu_nothing_is_said_to_have_been_measured() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.device", "--device", "cuda:9"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )

    assert done.returncode == 1
    assert done.stderr.startswith("not measured: ")
    assert done.stdout == ""
