"""PyTorch for the tests of this folder: that of this environment, or that which `make e2e-vllm` has beside vLLM.

What the latter has comes behind all that is ours, here and in the processes that are started.
"""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

VLLM = "PDGATE_VLLM_VENV"

if importlib.util.find_spec("torch") is None and VLLM in os.environ:
    version = "python{}.{}".format(*sys.version_info)
    added = str(Path(os.environ[VLLM], "lib", version, "site-packages"))
    sys.path.append(added)
    folder = tempfile.mkdtemp(prefix="pdgate-torch-")
    Path(folder, "sitecustomize.py").write_text(f"import sys\nsys.path.append({added!r})\n")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (folder, os.environ.get("PYTHONPATH", "")))
    )
if importlib.util.find_spec("torch") is None:
    # `make e2e-vllm` is the command of these tests, as of those on real vLLM; there it has to be found.
    assert VLLM not in os.environ, f"there is no PyTorch in {os.environ[VLLM]}"
    collect_ignore_glob = ["test_*.py"]
