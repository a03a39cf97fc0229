"""A class has a name of its own in the whole package: one word, one idea, wherever it is read or searched for."""

import ast
from collections import defaultdict
from collections.abc import Mapping

import pytest

from tests.test_small_modules import sources

pytestmark = pytest.mark.source


def named_twice(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """Name of a class -> the modules that define one of it, where there are several."""
    modules = defaultdict(set)
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(module)
    return {name: found for name, found in modules.items() if len(found) > 1}


def test_no_two_modules_have_a_class_of_one_name() -> None:
    assert named_twice(sources()) == {}


def test_a_name_that_two_modules_have_is_found() -> None:
    texts = {"a": "class Job: ...\nclass Own: ...", "b": "def job():\n    class Job: ..."}

    assert named_twice(texts) == {"Job": {"a", "b"}}
