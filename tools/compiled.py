"""compiled.py FOLDER TARGET: compiles the hot path of the packages in FOLDER, for one platform.

FOLDER has pdgate/ as it is installed. The extension modules go to TARGET, at the places
where they are installed. mypyc reads the same typed source that the interpreter does; a call
takes about two thirds of the instructions then (docs/performance.md). The source is
installed beside them, and a module without its extension is just interpreted.

Compiled classes cannot be subclassed by interpreted ones, so what forwarders, policies and
transfers of others inherit from is not among these; nor are msgspec's structs, which are C.

mypyc believes mypy: after `self.error = None` it takes `self.error` for None until the end of
the function, and raises TypeError if a call has set it meanwhile. Such an assignment belongs
into a method of its own. And a class forgets a default of None for an attribute whose type is a Protocol,
so such attributes are set in __init__.

A compiled class whose base is an interpreted ABC (slo's InTime) shares that one's cache of isinstance:
after `isinstance(other, InTime)` said no, `isinstance(other, Policy)` says so, too. So pipelines, of
which others may ask that, are interpreted.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from mypyc.build import mypycify
from setuptools import Distribution
from setuptools.command.build_ext import build_ext

HOT: Final = {
    "forwarders": "execution first_event lives other_apis kv_lease prompt record retry routing",
    "gateway": "deadlines intake request_headers service total_time",
    "gateway/admission": "gate giving_way place",
    "gateway/front": "hot_cycle response_head",
    "gateway/metrics": "aggregates call_stats",
    "gateway/security": "authenticator headers keys",
    "gateway/upstream": "client connection exchange pool",
    "protocols": "fields inline_media instance members openai request_id sse",
    "protocols/dialects": "nixl",
    "scheduling/admission": "line others room",
    "scheduling": "account context_length eligible endpoint endpoints reservation scheduler",
    "scheduling/health": "breaker cause",
    "scheduling/disaggregation": "decision",
    "scheduling/policies": "slo",
    "scheduling/latency": "accuracy least_squares model quadratic",
    "scheduling/prefix": "index tree",
    "scheduling/pipeline": "scorers shortlist",
}

MYPY: Final = """\
[mypy]
follow_imports = silent
ignore_missing_imports = True
"""


class BesideEachOther(build_ext):
    """Files of one extension are compiled at once, on all cores: half a minute instead of one."""

    def build_extensions(self) -> None:
        compile_some = self.compiler.compile

        def compile_all(sources: Sequence[str], **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                made = threads.map(lambda source: compile_some([source], **options), sources)
                return [compiled for each in made for compiled in each]

        self.compiler.compile = compile_all
        super().build_extensions()


def compile_hot_path(folder: Path, target: Path) -> None:
    """Raises SystemExit, with what mypyc found, for source that cannot be compiled."""
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        shutil.copytree(folder / "pdgate", work / "pdgate")
        (work / "mypy.ini").write_text(MYPY)
        os.chdir(work)
        paths = [
            f"pdgate/{where}/{name}.py" for where, names in HOT.items() for name in names.split()
        ]
        # Of many files: one of all takes the C compiler twice as long, and is no faster.
        extensions = mypycify(
            ["--config-file=mypy.ini", *paths], group_name="pdgate", multi_file=True
        )
        building = BesideEachOther(Distribution({"ext_modules": extensions}))
        building.build_lib = str(target)
        building.build_temp = str(work / "objects")
        building.ensure_finalized()
        building.run()


if __name__ == "__main__":
    compile_hot_path(Path(sys.argv[1]), Path(sys.argv[2]))
