"""python -m benchmarks.overlap [--rounds N] [--picture FILE] [--json FILE] [--results FILE] [--smoke]

Prints a table in Markdown; see the package for what is measured.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.overlap import prefill, rounds, timeline
from benchmarks.overlap.rounds import Figures
from benchmarks.transfer import results

BACKENDS = ("shm", "tcp")
ONE_CORE = "OPENBLAS_NUM_THREADS"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overlap")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--picture", type=Path, help="where to draw the rounds, as SVG")
    parser.add_argument("--json", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--results", type=Path, help="page whose table to rewrite")
    parser.add_argument("--smoke", action="store_true", help="one small prompt only")
    asked = parser.parse_args(words)
    models = (prefill.SMOKE,) if asked.smoke else (prefill.LARGE, prefill.SMALL)
    about = results.machine(asked.rounds)
    found = [
        rounds.run(backend, model, asked.rounds, lambda line: print(line, file=sys.stderr))
        for backend in BACKENDS
        for model in models
    ]
    if asked.picture:
        asked.picture.write_text(timeline.picture(found))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in found], indent=1) + "\n")
    shown = markdown(found)
    if asked.results:
        results.rewrite(asked.results, "overlap", f"{about}\n\n{shown}")
    print(shown)


HEADINGS = (
    "",
    "compute alone, ms",
    "transfer, ms",
    "pushed at the end, ms",
    "by layers, ms",
    "hidden",
    "moved before compute ended",
)


def markdown(found: Sequence[Figures]) -> str:
    """Shares are medians, with the least and the most of the rounds."""
    rows = [HEADINGS, ("---",) * len(HEADINGS)]
    for one in found:
        times = (one.compute_ms, one.transfer_ms, one.at_the_end_ms, one.by_layers_ms)
        shares = [
            f"{middle:.0%} ({least:.0%} to {most:.0%})"
            for middle, least, most in (one.hidden, one.before_the_end)
        ]
        rows.append((f"{one.backend}, {one.model}", *(f"{each:.1f}" for each in times), *shares))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


if __name__ == "__main__":
    if ONE_CORE not in os.environ:
        # BLAS reads it when it is loaded, so we begin anew; the other core is for what moves.
        again = [sys.executable, "-m", "benchmarks.overlap", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, ONE_CORE: "1"})
    main()
