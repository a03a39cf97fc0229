"""Installs the package that a tutorial describes, as far as Python can tell.

pip would build a wheel of the folder and unpack it; what counts afterwards is the
modules on the path and a dist-info folder beside them that names the entry points.
"""

import tomllib
from pathlib import Path

from tests.docs.pages import blocks


def write(page: Path, folder: Path) -> list[Path]:
    """Every block that is labelled with a file name, and the dist-info of its pyproject.toml."""
    written = []
    for block in blocks(page):
        if "." in block.label and " " not in block.label:
            path = folder / block.label
            path.write_text(block.text, encoding="utf-8")
            written.append(path)
    _write_dist_info(folder)
    return written


def _write_dist_info(folder: Path) -> None:
    project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    name, version = project["name"], project["version"]
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n", encoding="utf-8"
    )
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{point} = {target}" for point, target in points.items())]
    info.joinpath("entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
