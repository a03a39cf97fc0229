"""Pictures of simulations: SVG written by hand, so that it needs no package, and one HTML page.

chart   lines over two axes, with a legend
page    all of it for some runs; and busy engines over time, a row for each
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from pdgate.lab.simulator.bound import Bound
from pdgate.lab.simulator.comparing import Case
from pdgate.lab.simulator.pictures.page import page, pictures
from pdgate.lab.simulator.summary import Summary
from pdgate.lab.simulator.world import Ran


def draw(
    folder: Path,
    several: Sequence[Case],
    ran: Sequence[Ran],
    figures: Sequence[Summary],
    limits: Mapping[float, Bound],
) -> Path:
    """Writes each picture and the page that has them all, which is returned. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pictures(several, ran, figures, limits)
    for name, svg in drawn.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    path = folder / "index.html"
    path.write_text(page(several, figures, drawn), encoding="utf-8")
    return path
