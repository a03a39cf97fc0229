"""compose.yaml, the Dockerfiles and the systemd unit: no container is started, but what they would run is.

Each service of ours runs as a process with an address of its own in 127.0.0.0/8, where its
name is put in.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import Any

import httpx2
import pytest

from pdgate import __version__
from tests.deploy.rendering import DEPLOY
from tests.support.processes import Child, child
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.source

COMPOSE = DEPLOY / "docker" / "compose.yaml"
OURS = f"pdgate:{__version__}"
START_SECONDS = 90


def left_out(path: str, patterns: list[str]) -> bool:
    """By .dockerignore, as far as ours goes: a pattern of a path or of one of its parents (moby/patternmatcher).

    A slash at a pattern's end says nothing.
    """
    beginnings = [path, *map(str, Path(path).parents)]
    return any(
        PurePosixPath(each).match(pattern.rstrip("/").removeprefix("**/"))
        and ("**" in pattern or each.count("/") == pattern.rstrip("/").count("/"))
        for pattern in patterns
        for each in beginnings[: beginnings.index(".")]
    )


def test_an_image_is_built_of_all_that_git_has_but_tests() -> None:
    """`src/pdgate/*/` would leave out `__init__.py` as well, and nothing could be compiled."""
    root = DEPLOY.parent
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    listed = subprocess.check_output(["git", "ls-files"], cwd=root, text=True).splitlines()

    assert left_out("src/pdgate/__init__.py", ["src/pdgate/*/"])
    assert left_out(".venv/bin/python", patterns)
    assert left_out("a/b/__pycache__/c", patterns)
    lost = [path for path in listed if left_out(path, patterns)]
    assert lost
    assert not [path for path in lost if not path.startswith("tests/")]


def read(path: Path) -> dict[str, Any]:
    import yaml

    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found = read(COMPOSE)["services"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def addresses(services: dict[str, Any]) -> dict[str, str]:
    return {name: f"127.0.77.{number}" for number, name in enumerate(services, 1)}


def command(name: str, services: dict[str, Any], addresses: dict[str, str]) -> list[str]:
    """Of a container with that name, on this machine."""
    words = [str(word) for word in services[name]["command"]]
    for service, address in addresses.items():
        words = [re.sub(rf"(?<=[/=]){service}(?!://)(?=[:/]|$)", address, word) for word in words]
    return [word.replace("0.0.0.0", addresses[name]) for word in words]


@pytest.fixture(scope="module")
def kv_secret(services: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the service of that name makes, in a folder of the test's."""
    folder = tmp_path_factory.mktemp("kv")
    program, *words = services["kv-secret"]["command"]
    assert program == "python"
    here = [word.replace("/etc/pdgate-kv", str(folder)) for word in words]
    # The image's user, which only root may make an owner.
    here = [word.replace("65532, 65532", f"{os.getuid()}, {os.getgid()}") for word in here]
    for _ in range(2):
        subprocess.run([sys.executable, *here], check=True, timeout=60)
        made = (folder / "secret").read_text()
    assert len(made) == 64
    assert made == (folder / "secret").read_text()
    return folder / "secret"


def test_engines_and_nobody_else_get_their_secret(
    services: dict[str, Any], kv_secret: Path
) -> None:
    assert kv_secret.stat().st_mode & 0o777 == 0o400
    for name, service in services.items():
        mounts = any(volume.startswith("kv-secret:") for volume in service.get("volumes", ()))
        assert mounts == (name == "kv-secret" or name.startswith(("prefill", "decode"))), name


@pytest.fixture(scope="module")
def running(
    services: dict[str, Any], addresses: dict[str, str], kv_secret: Path
) -> Iterator[dict[str, Child]]:
    redis = shutil.which("redis-server")
    assert redis is not None, "redis-server is not installed: apt-get install redis-server"
    with ExitStack() as stack:
        store = [redis, *services["redis"]["command"], "--bind", addresses["redis"]]
        stack.enter_context(child(store, name="redis"))
        found = {}
        for name, service in services.items():
            if service.get("image") == OURS:
                said = command(name, services, addresses)
                env = dict(service.get("environment", {}))
                if "PDGATE_KV_SECRET_FILE" in env:
                    env["PDGATE_KV_SECRET_FILE"] = str(kv_secret)
                found[name] = stack.enter_context(
                    child([sys.executable, "-m", "pdgate", *said], name=name, env=env)
                )
        yield found


@pytest.mark.slow
def test_what_compose_starts_answers(
    running: dict[str, Child], services: dict[str, Any], addresses: dict[str, str]
) -> None:
    (port,) = (published.split(":")[-1] for published in services["gateway"]["ports"])
    url = f"http://{addresses['gateway']}:{port}"
    running["gateway"].wait_for_http(f"{url}/ready", START_SECONDS)
    # The body of the command at the top of the file.
    (body,) = re.findall(r"^#.*-d '(\{.*\})'$", COMPOSE.read_text(), re.MULTILINE)

    # Where the reader's command draws, an answer may end early.
    said = {**json.loads(body), "temperature": 0, "ignore_eos": True}
    asked = httpx2.post(f"{url}/v1/completions", json=said, timeout=60)

    assert asked.status_code == 200, asked.text
    assert asked.json()["usage"]["completion_tokens"] == 16

    def counted() -> object:
        metrics = httpx2.get(f"{url}/metrics", timeout=PATIENCE_SECONDS).text
        return re.search(r'^pdgate_kv_handover_total{.*result="done"} 1\.0$', metrics, re.MULTILINE)

    wait_until(counted, "the hand-over in the gateway's metrics")

    def shared() -> bool:
        ready = httpx2.get(f"{url}/ready", timeout=PATIENCE_SECONDS).json()
        return bool(ready["redis"] == {"state": "current"})

    wait_until(shared, "a gateway that has read all of Redis")


def test_prometheus_looks_where_things_are(services: dict[str, Any]) -> None:
    here, plain = (
        read(DEPLOY / folder / "prometheus.yaml")["scrape_configs"]
        for folder in ("docker", "prometheus")
    )
    targets = {
        target for job in here for config in job["static_configs"] for target in config["targets"]
    }

    for job, other in zip(here, plain, strict=True):
        assert {**job, "static_configs": None} == {**other, "static_configs": None}
    assert {target.partition(":")[0] for target in targets} == {
        name for name, service in services.items() if service.get("image") == OURS
    }


def test_what_containers_see_of_the_repository_is_there(services: dict[str, Any]) -> None:
    named = read(COMPOSE)["volumes"]
    mounted = [
        volume.split(":")[0]
        for each in services.values()
        for volume in each.get("volumes", ())
        if volume.split(":")[0] not in named
    ]

    assert mounted
    for path in mounted:
        assert (COMPOSE.parent / path).exists(), path
    built = {each["build"]["dockerfile"] for each in services.values() if "build" in each}
    assert built == {"deploy/docker/Dockerfile"}


def test_images_are_of_extras_that_exist() -> None:
    import tomllib

    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    said = (DEPLOY / "docker" / "Dockerfile").read_text()
    (extras,) = re.findall(r"pdgate\[([a-z,-]+)\]", said)

    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    # Not root, and nothing that pip could be asked to bring.
    assert re.search(r"^USER 65532", said, re.MULTILINE)


def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    verifier = shutil.which("systemd-analyze")
    if verifier is None:
        pytest.skip("systemd-analyze is not installed, as in most containers")
    unit = (DEPLOY / "systemd" / "pdgate.service").read_text()
    # That it is installed there is the reader's to do.
    there = tmp_path / "pdgate.service"
    there.write_text(unit.replace("/opt/pdgate/bin/pdgate", sys.executable))

    said = subprocess.run(
        [verifier, "verify", str(there)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (said.returncode, said.stderr) == (0, "")


def test_systemd_waits_for_as_long_as_a_drain_takes() -> None:
    from pdgate.gateway.config import Settings

    unit = (DEPLOY / "systemd" / "pdgate.service").read_text()
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    drain = Settings().drain

    assert drain.grace_seconds + drain.notice_seconds < int(seconds)
