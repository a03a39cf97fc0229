"""wheel_is_whole.py WHEEL: whether it holds all that this checkout would install, and nothing else.

Byte for byte, so what tests have shown of the source holds for the wheel, too; what is left to be
tried with it is what is only there once it is installed: commands, entry points, requirements.
"""

import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parents[1]


def main() -> None:
    (wheel,) = sys.argv[1:]
    with ZipFile(wheel) as packed:
        names = [n for n in packed.namelist() if not n.endswith("/") and ".dist-info/" not in n]
        found = {name: packed.read(name) for name in names}
    wanted = dict(_wanted())
    wrong = [
        *(f"{name} is there twice" for name in found if names.count(name) > 1),
        *(f"{name} is missing" for name in wanted.keys() - found.keys()),
        *(f"{name} is not of this checkout" for name in found.keys() - wanted.keys()),
        *(f"{name} differs" for name, text in found.items() if wanted.get(name, text) != text),
    ]
    if wrong:
        sys.exit("\n".join(["the wheel is not what this checkout is:", *sorted(wrong)]))
    print(f"the wheel holds the {len(wanted)} files of this checkout, and nothing else")


def _wanted() -> list[tuple[str, bytes]]:
    """Name in the wheel -> content, of what git knows or would add."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    sources = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"]
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for path in filter(None, listed.stdout.split("\0")):
        for folder, place in sources.items():
            file = ROOT / path
            # What git knows may have been deleted and not committed.
            if path.startswith(f"{folder}/") and file.is_file():
                found.append((place + path.removeprefix(folder), file.read_bytes()))
    return found


if __name__ == "__main__":
    main()
