"""openai-python's own tests pass against the gateway, as against the API they were made for.

They call `create` with every parameter that the API has, synchronous and not, whole and as
a stream, parsed and raw, and check the type of all that comes back.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

import pytest

from tests.end_to_end.openai_sdk import application
from tests.end_to_end.openai_sdk import suite as openai_python
from tests.end_to_end.openai_sdk.suite import FILES, Suite
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import child

pytestmark = pytest.mark.slow

PDGATE = (sys.executable, "-m", "pdgate")
PROTOCOL = "vllm-nixl"
TESTS_OF_CREATE = "_create"
RUN_SECONDS = 240


@pytest.fixture(scope="module")
def suite() -> Suite:
    return openai_python.cached()


@pytest.fixture(scope="module")
def engines(suite: Suite) -> Iterator[tuple[str, str]]:
    """URLs of a prefill and a decode engine that serve the models of the suite."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(child(engine(role, suite.models()), name=role))
            for role in ("prefill", "decode")
        ]
        prefill, decode = (
            it.wait_for_line(rf"^pdgate engine ready (http\S+) role={it.name}", 60)[1]
            for it in started
        )
        yield prefill, decode


@pytest.fixture(params=["serve", "hypercorn", "granian"])
def gateway(
    request: pytest.FixtureRequest, engines: tuple[str, str], tmp_path: Path
) -> Iterator[str]:
    """URL of the gateway: its own server's, and its FastAPI application's on those of others."""
    port = free_port()
    url = f"http://{LOOPBACK}:{port}"
    command, more = front(port, *engines), {}
    if request.param != "serve":
        config = tmp_path / "pdgate.toml"
        config.write_text(CONFIG.format(PROTOCOL, *engines))
        command, more = SERVERS[request.param](port), {"PDGATE_CONFIG": str(config)}
    with child(command, name="gateway", env=more) as serving:
        serving.wait_for_http(f"{url}/ready")
        yield url


CONFIG = """
pdd_protocol = "{}"
instances = [{{ url = "{}", role = "prefill" }}, {{ url = "{}", role = "decode" }}]
"""
APPLICATION = f"{application.__name__}:app"
BIN = Path(sys.executable).parent
SERVERS: Mapping[str, Callable[[int], list[str]]] = {
    "hypercorn": lambda port: [str(BIN / "hypercorn"), APPLICATION, "--bind", f"{LOOPBACK}:{port}"],
    "granian": lambda port: [
        *(str(BIN / "granian"), "--interface", "asgi", "--host", LOOPBACK, "--port", str(port)),
        APPLICATION,
    ],
}


def engine(role: str, models: Sequence[str]) -> list[str]:
    names = chain.from_iterable(("--served-model-name", name) for name in models)
    kind = ("--role", role, "--pdd-protocol", PROTOCOL)
    return [*PDGATE, "engine", *kind, "--host", LOOPBACK, "--port", "0", *names]


def front(port: int, prefill: str, decode: str) -> list[str]:
    engines = ("--pdd-protocol", PROTOCOL, "--prefill", prefill, "--decode", decode)
    return [*PDGATE, "serve", "--host", LOOPBACK, "--port", str(port), *engines]


def test_its_tests_of_create_pass_against_the_gateway(suite: Suite, gateway: str) -> None:
    run = subprocess.run(
        [
            *(str(suite.python), "-m", "pytest", *FILES),
            *("-k", TESTS_OF_CREATE),
            # The suite's own settings, less its parallel run and its list of slow tests.
            *("-o", "addopts=", "--tb=short", "-p", "no:cacheprovider"),
        ],
        check=False,
        cwd=suite.source,
        env={"TEST_API_BASE_URL": f"{gateway}/v1", "PATH": "", "HOME": str(suite.source)},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )

    assert run.returncode == 0, f"{run.stdout}\n{run.stderr}"
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed, run.stdout
    assert int(passed[1]) == count(suite), run.stdout
    assert not re.search(r"\d+ (failed|skipped|xfailed|error)", run.stdout), run.stdout


def count(suite: Suite) -> int:
    """How many cases of `create` the two files hold; each test runs with several clients."""
    sync = asynchronous = 0
    for file in FILES:
        text = (suite.source / file).read_text()
        sync += len(re.findall(r"^    def test_\w*_create", text, re.MULTILINE))
        asynchronous += len(re.findall(r"^    async def test_\w*_create", text, re.MULTILINE))
    assert sync
    assert asynchronous
    # Loose and strict; asynchronous ones also over aiohttp.
    return 2 * sync + 3 * asynchronous
