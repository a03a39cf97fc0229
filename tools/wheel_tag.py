"""wheel_tag.py WHEEL: whether its name says for which Python and platform it is, as its content has it.

With extension modules it is for the Python and the platform that compiled them, and else for any;
the name, WHEEL in its metadata and the modules' suffixes must say the same, or pip installs it
where it cannot be imported.
"""

import sys
from pathlib import Path
from zipfile import ZipFile

from packaging.utils import parse_wheel_filename


def complaints(wheel: Path) -> list[str]:
    with ZipFile(wheel) as packed:
        modules = [name for name in packed.namelist() if name.endswith(".so")]
        (about,) = (name for name in packed.namelist() if name.endswith(".dist-info/WHEEL"))
        said = dict(
            line.split(": ", 1) for line in packed.read(about).decode().splitlines() if ": " in line
        )
    (tag,) = parse_wheel_filename(wheel.name)[3]
    found = []
    if said["Tag"] != str(tag):
        found.append(f"its name says {tag}, and WHEEL {said['Tag']}")
    if said["Root-Is-Purelib"] != ("false" if modules else "true"):
        found.append(f"Root-Is-Purelib is {said['Root-Is-Purelib']}")
    if not modules and str(tag) != "py3-none-any":
        found.append(f"nothing in it is compiled, and it is for {tag} only")
    # hot.cpython-313-x86_64-linux-gnu.so, for cp313-cp313-linux_x86_64
    for name in modules:
        python, machine = name.split(".")[-2].removeprefix("cpython-").split("-")[:2]
        if tag.interpreter != f"cp{python}" or tag.abi != f"cp{python}":
            found.append(f"{name} is of CPython {python}, and the wheel for {tag}")
        elif not tag.platform.endswith(f"_{machine}"):
            found.append(f"{name} is for {machine}, and the wheel for {tag}")
    return found


if __name__ == "__main__":
    (asked,) = sys.argv[1:]
    if wrong := complaints(Path(asked)):
        sys.exit("\n".join([f"{asked}:", *wrong]))
    print(f"{Path(asked).name} is for what it says")
