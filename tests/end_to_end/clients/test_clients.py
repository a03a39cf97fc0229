"""Client libraries as they are installed, against a gateway in front of P, D and a plain engine.

What each of them asks is in ask_<library>.py, which runs in their environment: a stream, tools,
structured output, and errors that the library must take for what they are.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.end_to_end.clients.conftest import Site

HERE = Path(__file__).parent
RUN_SECONDS = 300


@pytest.mark.slow
@pytest.mark.source
@pytest.mark.parametrize("library", ["openai", "anthropic", "langchain", "litellm", "instructor"])
def test_a_client_gets_what_it_asks_for(
    library: str, clients: Path, site: Site, tmp_path: Path
) -> None:
    run = subprocess.run(
        [
            *(str(clients), "-m", "pytest", str(HERE / f"ask_{library}.py")),
            # Nothing of the project's own settings.
            *("-c", "/dev/null", "--rootdir", str(HERE), "--noconftest"),
            *("--import-mode=importlib", "-p", "no:cacheprovider", "--tb=short"),
        ],
        check=False,
        # Where `tests` is found.
        cwd=HERE.parents[2],
        env={
            "PDGATE_URL": site.gateway.url,
            "HOME": str(tmp_path),
            "PATH": "",
            "PYTHONDONTWRITEBYTECODE": "1",
            # Both would ask the internet when they are imported or called.
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LANGSMITH_TRACING": "false",
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )

    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    assert re.search(r"\d+ passed", run.stdout), run.stdout
    assert not re.search(r"\d+ (failed|skipped|xfailed|error)", run.stdout), run.stdout
