"""Files and flags make the same plans, and say what is wrong with them."""

from pathlib import Path
from typing import Any

import pytest

from pdgate.lab.chaos.fault import Corrupt, Cut, Delay, Refuse
from pdgate.lab.chaos.plan import Plan, Rule
from pdgate.lab.chaos.settings import BadSettings, load

ENGINE = {"engine": "http://127.0.0.1:8100"}
FILE = """
listen = "127.0.0.1:9001"
engine = "http://10.0.0.1:8100"
seed = 7
per = "connection"

[[faults]]
fault = "cut"
after_bytes = 2000
reset = true
every = 3

[[faults]]
fault = "delay"
seconds = 0.5
chance = 0.01
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chaos.toml"
    path.write_text(FILE)
    return path


def test_a_file_says_everything(file: Path) -> None:
    settings = load(file, {}, [])

    assert (settings.host, settings.port, settings.engine) == (
        "127.0.0.1", 9001, "http://10.0.0.1:8100",
    )  # fmt: skip
    rules = (Rule(Cut(2000, reset=True), every=3), Rule(Delay(0.5), chance=0.01))
    assert settings.plan() == Plan(rules, seed=7, per="connection")


def test_flags_go_over_the_file_and_their_fault_replaces_those_of_the_file(file: Path) -> None:
    settings = load(file, {"seed": 8}, [{"fault": "refuse"}])

    assert settings.port == 9001
    assert settings.plan() == Plan((Rule(Refuse()),), seed=8, per="connection")


def test_flags_are_enough() -> None:
    settings = load(None, ENGINE, [{"fault": "corrupt", "every": 2}])

    assert settings.plan() == Plan((Rule(Corrupt(), every=2),))


def test_a_v6_address_is_written_in_brackets() -> None:
    settings = load(None, {**ENGINE, "listen": "[::1]:9000"}, [])

    assert (settings.host, settings.port) == ("::1", 9000)


@pytest.mark.parametrize(
    ("flags", "fault", "says"),
    [
        ({}, {}, "'engine' is missing: --engine"),
        ({"engine": "https://e:1"}, {}, "http://host:port"),
        ({**ENGINE, "listen": "9000"}, {}, "listen is host:port"),
        ({**ENGINE, "listen": "127.0.0.1:99999"}, {}, "listen is host:port"),
        ({**ENGINE, "listen": "127.0.0.1:٩٠٠٠"}, {}, "listen is host:port"),
        ({**ENGINE, "listn": "x"}, {}, "unknown key 'listn'; the nearest known one is 'listen'"),
        ({**ENGINE, "quux": 1}, {}, "unknown key 'quux'; known here are engine, listen"),
        ({**ENGINE, "seed": "x"}, {}, "seed"),
        (ENGINE, {"fault": "explode"}, r"faults\[0\].*explode"),
        (ENGINE, {"fault": "delay"}, "seconds"),
        (ENGINE, {"fault": "delay", "seconds": 0}, "seconds"),
        (ENGINE, {"fault": "cut", "seconds": 1.0}, "seconds"),
        (ENGINE, {"fault": "cut", "after_byte": 1}, r"faults\[0\].*nearest .* 'after_bytes'"),
        (ENGINE, {"fault": "delay"}, "'seconds' is missing: --seconds"),
        (ENGINE, {"fault": "cut", "every": 0}, r"faults\[0\].*every"),
    ],
)
def test_what_is_wrong_is_named(flags: dict[str, Any], fault: dict[str, Any], says: str) -> None:
    with pytest.raises(BadSettings, match=says):
        load(None, flags, [fault] if fault else [])


@pytest.mark.parametrize(("text", "says"), [("engine =", "TOML"), (None, "cannot read")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "chaos.toml"
    if text is not None:
        path.write_text(text)

    with pytest.raises(BadSettings, match=says):
        load(path, {}, [])
