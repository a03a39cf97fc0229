"""A directory is opened by what its package declares, and a mistake is said in one line."""

from collections.abc import Mapping

import pytest

from pdgate.cluster import opening
from pdgate.cluster.directory import Tell
from pdgate.cluster.dns import Dns
from pdgate.cluster.opening import CannotOpen, opened
from pdgate.cluster.read_only import ReadOnly
from pdgate.protocols import plugins


class Acme(ReadOnly):
    """As a third-party directory declares its options."""

    def __init__(self, clock: object = None, *, url: str, token_file: str = "") -> None:
        self.said = (url, token_file)

    async def follow(self, tell: Tell) -> None: ...


class Point:
    """An entry point of somebody's package."""

    value = "pdgate_acme:Acme"

    def __init__(self, made: object) -> None:
        self._made = made

    def load(self) -> object:
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


def install(monkeypatch: pytest.MonkeyPatch, made: object) -> None:
    monkeypatch.setattr(plugins, "find", lambda group, kind, name: Point(made))


def test_ours_are_declared_as_anybodys() -> None:
    assert isinstance(opened("dns", ["prefill=a.test:80", "every_seconds=0.5"]), Dns)


@pytest.mark.parametrize(
    ("implied", "said"),
    [
        ({"url": "there"}, ("here", "")),
        ({"token_file": "t", "colour": "red"}, ("here", "t")),
        ({"token_file": ""}, ("here", "")),
    ],
)
def test_what_is_said_goes_over_what_is_implied(
    implied: Mapping[str, str], said: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is implied for another kind of directory is nothing to this one."""
    install(monkeypatch, Acme)
    made = opened("acme", ["url=here"], implied)

    assert isinstance(made, Acme)
    assert made.said == said


@pytest.mark.parametrize(
    ("made", "words", "why"),
    [
        (Acme, [], "needs the option 'url'"),
        (Acme, ["url"], "must be name=value"),
        (Acme, ["clock=x"], "has no option 'clock'; there are token_file"),
        (lambda: object(), [], "makes no Directory"),
        (ModuleNotFoundError(name="redis"), [], r"pip install '\.\[redis\]'"),
    ],
)
def test_what_cannot_be_opened_says_why(
    made: object, words: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, made)

    with pytest.raises(CannotOpen, match=why) as caught:
        opened("acme", words)

    assert "\n" not in str(caught.value)


def test_a_package_that_is_broken_is_not_taken_for_a_missing_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, ModuleNotFoundError(name="of_theirs"))

    with pytest.raises(ModuleNotFoundError):
        opened("acme", [])


def test_an_unknown_name_lists_those_there_are() -> None:
    with pytest.raises(CannotOpen, match=r"no directory is called 'zookeeper'; there are .*redis"):
        opened("zookeeper", [])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("redis", ["url=http://h:1"]),
        ("redis", ["url=redis://"]),
        ("redis", ["url=redis://h", "lease_seconds=0"]),
        ("redis", ["url=redis://h", "look_seconds=nan"]),
        ("etcd", ["urls=h:2379"]),
        ("file", ["path="]),
        ("dns", []),
    ],
    ids=str,
)
def test_options_of_ours_that_cannot_work_are_refused(name: str, words: list[str]) -> None:
    with pytest.raises(CannotOpen):
        opened(name, words)


def test_the_secret_of_a_redis_is_not_repeated() -> None:
    with pytest.raises(CannotOpen) as caught:
        opened("redis", ["url=rediz://:hush@h:1/0"])

    assert "hush" not in str(caught.value)


def test_the_extras_are_those_of_the_package() -> None:
    """Or the advice would be no help."""
    from importlib.metadata import metadata

    assert set(opening.EXTRAS.values()) <= set(metadata("pdgate").get_all("Provides-Extra") or ())
