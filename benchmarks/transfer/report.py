"""Figures as tables in Markdown."""

from collections.abc import Callable, Sequence

from benchmarks.transfer.contenders import CONTENDERS
from benchmarks.transfer.rounds import Figures


def markdown(found: Sequence[Figures]) -> str:
    return "\n\n".join(
        [
            "GB/s, median over the rounds; behind it the share of the baseline's in the same round:\n\n"
            + _table(found, _speed),
            "CPU time of both processes, ms per MiB:\n\n"
            + _table(found, lambda one: _short(one.cpu_ms_per_mib)),
        ]
    )


def _table(found: Sequence[Figures], cell: Callable[[Figures], str]) -> str:
    cases = list(dict.fromkeys(one.case for one in found))
    rows: dict[str, list[str]] = {}
    for one in found:
        rows.setdefault(one.contender, []).append(cell(one))
    lines = [["", *cases], ["---"] * (len(cases) + 1)]
    lines += [[_name(contender), *cells] for contender, cells in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _is_baseline(one: Figures) -> bool:
    return CONTENDERS[one.contender].baseline == one.contender


def _name(contender: str) -> str:
    baseline = CONTENDERS[contender].baseline
    return contender if baseline == contender else f"{contender} / {baseline}"


def _speed(one: Figures) -> str:
    speed = _short(one.gb_per_second)
    return speed if _is_baseline(one) else f"{speed} ({one.ratio[0]:.2f})"


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
