"""The figures as a table in Markdown."""

from benchmarks.disaggregation.fleet import RULES
from benchmarks.disaggregation.rounds import RATIO, Figures

TITLES = {
    "first_seconds": "first token, ms",
    "pace_seconds": "between two tokens, ms",
    "last_seconds": "last token, ms",
}


def table(figures: Figures) -> str:
    lines = [
        f"| | long prompts | {' | '.join(RULES)} | {RATIO} |",
        f"|---|---|{'---|' * len(RULES)}---|",
    ]
    for metric, mixes in figures.items():
        for mix, rules in mixes.items():
            times = " | ".join(f"{rules[rule] * 1000:.1f}" for rule in RULES)
            lines.append(f"| {TITLES[metric]} | {mix:.0%} | {times} | {rules[RATIO]:.2f} |")
    return "\n".join(lines)
