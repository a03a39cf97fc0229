"""The page is its own files and nothing else, wherever it is served."""

import re
from pathlib import Path

import pytest

from pdgate.gateway.console import page
from pdgate.protocols.instance import Role
from tests.gateway.console.watching import KNOWN, LIVE, gateway_with_console, picture_of
from tests.support.fleet import Engine

REFERENCE = re.compile(r"""(?:src|href)="([^"#]+)"|from "\./([^"]+)\"""")


async def test_every_file_that_the_page_names_is_there_and_may_be_run(
    front_end: None, tmp_path: Path
) -> None:
    async with gateway_with_console(tmp_path, Engine(Role.PLAIN)) as gateway:
        wanted, seen = ["index.html"], set[str]()
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            answer = await gateway.http.get(f"/console/{name}")
            assert answer.status_code == 200, name
            assert answer.headers["content-type"] == page.TYPES[Path(name).suffix]
            assert "script-src 'self';" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            wanted += [one or other for one, other in REFERENCE.findall(answer.text)]

    assert seen == {path.name for path in page.FOLDER.iterdir()}


async def test_the_page_is_in_a_folder_of_its_own_name(tmp_path: Path) -> None:
    """Relative, so that a proxy may put something before it."""
    async with gateway_with_console(tmp_path, Engine(Role.PLAIN)) as gateway:
        answer = await gateway.http.get("/console")
        assert (answer.status_code, answer.headers["location"]) == (307, "console/")
        whole = await gateway.http.get("/console/")
        assert "<title>pdgate console</title>" in whole.text


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.py", "%2e%2e/page.py", "page.py"])
async def test_no_other_file_can_be_had(name: str, tmp_path: Path) -> None:
    async with gateway_with_console(tmp_path, Engine(Role.PLAIN)) as gateway:
        assert (await gateway.http.get(f"/console/{name}")).status_code == 404


async def test_with_a_listener_for_admins_it_is_only_there(tmp_path: Path) -> None:
    engine = Engine(Role.PLAIN)
    async with gateway_with_console(tmp_path, engine, admin_listen="127.0.0.1:0") as gateway:
        for path in ("/console", "/console/", "/console/main.js", LIVE):
            assert (await gateway.http.get(path, headers=KNOWN)).status_code == 404, path
        for path in ("/console/", "/console/main.js"):
            assert (await gateway.http.get(gateway.admin_url + path)).status_code == 200, path
        assert (await picture_of(gateway, gateway.admin_url))["instances"]


def test_nothing_is_loaded_from_elsewhere() -> None:
    """Nor is markup ever made of words: whatever an engine is called, it is text."""
    for path in page.FOLDER.iterdir():
        said = path.read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\s\"']+", said)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", said)
        assert not re.search(r"<[^>]*\s(style|on\w+)=", said), f"{path.name}: not allowed to it"
