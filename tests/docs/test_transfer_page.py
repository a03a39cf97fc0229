"""The table of options in docs/operations/kv-transfer.md is what the backends take."""

import inspect
import re

import pytest

from pdgate.protocols import plugins
from tests.docs.pages import DOCS

PAGE = DOCS / "operations" / "kv-transfer.md"
ROW = re.compile(r"^\| `([\w-]+)` \| `(\w+)` \| (\S+) \|", re.MULTILINE)


def documented(backend: str) -> dict[str, str]:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {option: default for name, option, default in rows if name == backend}


@pytest.mark.parametrize("backend", ["cuda-ipc", "mooncake", "nixl", "shm", "tcp"])
@pytest.mark.source
def test_every_option_is_in_the_table_with_its_default(backend: str) -> None:
    made = plugins.find(plugins.TRANSFERS, "transfer backend", backend).load()

    options = {
        name: str(one.default) or "empty"
        for name, one in inspect.signature(made).parameters.items()
        if one.kind is inspect.Parameter.KEYWORD_ONLY and name != "identity"
    }

    assert documented(backend) == options
