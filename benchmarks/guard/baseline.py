"""What the gateway cost when somebody last agreed to it: baseline.json.

`yardstick` is a hash of what the cost is measured with, so a change of the relay cannot pass
for one of the gateway. `made_with` are the versions that shift counts: the ratio of gateway to
relay is compared whatever they are, single counts only under the same Python.
"""

import hashlib
import json
import platform
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Self

from benchmarks.guard.figures import Figure, Function

HERE = Path(__file__).parent
FILE = HERE / "baseline.json"
YARDSTICK = ("bare_wire", "memory_wire", "relay", "runs", "scenarios", "still_loop")

_pair = re.compile(r"\[\s+([-\d.]+),\s+([-\d.]+)\s+\]")


@dataclass(frozen=True, slots=True)
class Baseline:
    made_with: Mapping[str, str]
    yardstick: str
    figures: Mapping[str, Figure]

    @classmethod
    def of(cls, figures: Mapping[str, Figure]) -> Self:
        """As of this checkout, on this machine."""
        return cls(versions(), yardstick(), figures)

    @classmethod
    def from_json(cls, text: str) -> Self:
        found = json.loads(text)
        figures = {
            name: Figure(
                figure["gateway"],
                figure["relay"],
                figure["operations"],
                {name: Function(*pair) for name, pair in figure["functions"].items()},
            )
            for name, figure in found["figures"].items()
        }
        return cls(found["made_with"], found["yardstick"], figures)

    def as_json(self) -> str:
        """A function on each line, as [entered, bytecodes]."""
        figures = {
            name: {
                "gateway": _rounded(figure.gateway),
                "relay": _rounded(figure.relay),
                "operations": {name: round(n, 3) for name, n in figure.operations.items()},
                "functions": {
                    name: [round(did.entered, 3), round(did.bytecodes, 3)]
                    for name, did in figure.functions.items()
                },
            }
            for name, figure in self.figures.items()
        }
        return (
            _pair.sub(r"[\1, \2]", json.dumps(asdict(self) | {"figures": figures}, indent=1)) + "\n"
        )


def _rounded(instructions: float | None) -> int | None:
    return None if instructions is None else round(instructions)


def versions() -> dict[str, str]:
    found = {name: version(name) for name in ("httptools", "msgspec", "uvicorn")}
    python = ".".join(map(str, sys.version_info[:2]))
    return {"python": python, "machine": platform.machine(), **found}


def yardstick() -> str:
    digest = hashlib.sha256()
    for name in YARDSTICK:
        digest.update((HERE / f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]
