"""For all tests."""

import functools
import gc
import importlib.util
import os
import ssl
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import httpcore2
import pytest

# From Python 3.12 on: mypyc (2.4, lib-rt/misc_ops.c) gives `throw` the three arguments that Python
# deprecates. Nobody sees it outside tests, and there is nothing in our source to change.
THROWN_BY_COMPILED_CODE = (
    r"ignore:the \(type, exc, tb\) signature of throw\(\) is deprecated:DeprecationWarning"
)

from hypothesis import HealthCheck, settings

from tests import marked_files
from tests.file_queue import SECONDS, pytest_testnodedown, taken_as_one
from tests.matrix import MARK, left_to_the_whole, name_cases
from tests.support import forked

__all__ = ["pytest_testnodedown"]

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy", "grpc_proxy")

# A case that takes long says something about the machine and what else it does, not about pdgate.
settings.register_profile("pdgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pdgate")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Whole products of cases are run by `-m matrix` alone. Where several processes take files of tests from
    one queue, the longest ones come first, so that none is begun when all others are through."""
    if MARK not in config.option.markexpr:
        left = left_to_the_whole(items)
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]
    else:
        name_cases(items)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -SECONDS.get(taken_as_one(item.nodeid), 0))


def pytest_itemcollected(item: pytest.Item) -> None:
    """Before `-m` takes any away."""
    if marked_files.is_hidden(item):
        marked_files.hidden.append(item.nodeid)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.name.startswith("test_")
    return (is_test and marked_files.is_left_out(collection_path, config.option.markexpr)) or None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One process takes all files that share a fleet, so that it is started once (file_queue.py)."""
    from xdist.scheduler import LoadScopeScheduling

    queue: Any = LoadScopeScheduling(config, log)
    queue._split_scope = taken_as_one
    return queue


def pytest_sessionstart() -> None:
    """Nothing that collecting makes is garbage, and to look for some took a sixth of its time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported for them stays: each full look through it for garbage would stop an event
    loop, and with it the answers of a test's engines, for a second or more."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """FastAPI remembers thousands of routes that it has looked at, and each of them keeps its gateway: after
    some hundred tests each full look for garbage stopped an event loop for a second."""
    models = sys.modules.get("fastapi.dependencies.models")
    for remembers in list(vars(models).values()) if models else ():
        if isinstance(remembers, functools._lru_cache_wrapper):
            remembers.cache_clear()


def pytest_configure(config: pytest.Config) -> None:
    # One that is for packages must not stand between tests and what they start: gRPC waits for it for ever.
    for name in PROXIES:
        os.environ.pop(name, None)
        os.environ.pop(name.upper(), None)
    forked.install()
    _read_certificates_once()
    found = importlib.util.find_spec("pdgate.gateway.service")
    if found is not None and str(found.origin).endswith(tuple(EXTENSION_SUFFIXES)):
        config.addinivalue_line("filterwarnings", THROWN_BY_COMPILED_CODE)


def _read_certificates_once() -> None:
    """Each client of httpx reads all certificates of the system: 25 ms of CPU time, a third of what a test with a
    gateway takes."""
    read = httpcore2.default_ssl_context

    @functools.cache
    def read_once(trust_env: bool, file: str | None, folder: str | None) -> ssl.SSLContext:
        return read(_trust_env=trust_env)

    def default_ssl_context(*, _trust_env: bool = True) -> ssl.SSLContext:
        said = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
        return read_once(_trust_env, *said)

    httpcore2.default_ssl_context = default_ssl_context
