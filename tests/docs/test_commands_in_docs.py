"""Every shell command of README.md and docs/ can be typed as it stands, and is run, or says why not."""

import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.docs import running, spelling
from tests.docs.shell import ROOT, Command, commands, pages
from tests.docs.spelling import Misspelt

pytestmark = pytest.mark.source

FOUND = commands()
# A command that several pages have is run once.
RUN_HERE = list(
    {one.text: one for one in FOUND if not one.run_by and running.can_run(one)}.values()
)
AT_A_TIME = 4


@pytest.mark.parametrize("command", FOUND, ids=str)
def test_each_command_is_spelt_right(command: Command) -> None:
    spelling.check(command)


def test_commands_within_sentences_have_flags_that_exist() -> None:
    """Those with a flag; a mere name is a name."""
    within = re.compile(r"(?<!`)`((?:pdgate|make|python -m) [^`]*--[^`]+)`")
    found = [
        Command(str(page.relative_to(ROOT)), number, text)
        for page in pages()
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for text in within.findall(line)
        if "COMMAND" not in text
    ]

    assert len(found) > 10
    for command in found:
        spelling.check(command)


@pytest.mark.parametrize("command", FOUND, ids=str)
def test_each_command_is_run_or_says_why_not(command: Command) -> None:
    assert command.run_by or command.not_run or running.can_run(command), command.text

    for one in filter(None, command.run_by.split(", ")):
        path, _, name = one.partition("::")
        said = (ROOT / path).read_text(encoding="utf-8")
        assert f"def {name}(" in said if name else said


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Command, Future[None]]]:
    """Of all that are asked for, some at a time: most of their time they wait."""
    asked = [getattr(item, "callspec", None) for item in request.session.items]
    wanted = {one.params["command"] for one in asked if one and "command" in one.params}
    with (
        running.site(tmp_path_factory.mktemp("site")) as site,
        ThreadPoolExecutor(AT_A_TIME) as pool,
    ):
        yield {one: pool.submit(running.run, one, site) for one in RUN_HERE if one in wanted}


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN_HERE, ids=str)
def test_it_does_what_it_is_told(command: Command, runs: Mapping[Command, Future[None]]) -> None:
    if command.text.startswith("curl") and shutil.which("curl") is None:
        pytest.skip("there is no curl")
    runs[command].result()


@pytest.mark.parametrize(
    "text",
    [
        "pdgate serve --prefil http://127.0.0.1:8100",
        "pdgate engine --role prefix",
        "pdgate serve --port eighty",
        "pdgate server",
        "make tests",
        'make demo ARGS="--prefil 2"',
        "python -m benchmarks.paths",
        "python -m benchmarks.path --round 2",
        "pip install 'pdgate[kafka]'",
        "docker build -f deploy/dockers/Dockerfile .",
        "vllm serve MODEL --kv-transfer-config '{\"kv_connector\": NixlConnector}'",
        "unheard-of --help",
    ],
)
def test_a_mistake_would_be_found(text: str) -> None:
    with pytest.raises(Misspelt, match=r"page\.md:1"):
        spelling.check(Command("page.md", 1, text))
