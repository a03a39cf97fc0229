"""What the command line may set of a transfer backend is what its constructor takes."""

import pytest

from pdgate.engine import transfer_options
from pdgate.engine.settings import EngineSettings
from pdgate.protocols import plugins
from pdgate.protocols.options import Value


class Acme:
    """As a third-party backend declares its options."""

    def __init__(
        self,
        host: str = "",
        advertise: str = "",
        *,
        lanes: int = 4,
        crc: bool = False,
        pause: float = 0.5,
        nic: str = "",
        hook: object = None,
    ) -> None: ...


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        def load(self) -> type:
            return Acme

    monkeypatch.setattr(plugins, "find", lambda group, kind, name: Installed())
    monkeypatch.setattr(plugins, "names", lambda group: ["acme"])


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("lanes=8", {"lanes": 8}),
        ("crc=true", {"crc": True}),
        ("crc=No", {"crc": False}),
        ("pause=1.5", {"pause": 1.5}),
        ("nic=mlx5_0,mlx5_1", {"nic": "mlx5_0,mlx5_1"}),
        ("nic=a=b", {"nic": "a=b"}),
    ],
)
def test_a_word_becomes_what_the_constructor_declares(
    word: str, expected: dict[str, Value]
) -> None:
    assert transfer_options.read("acme", [word]) == expected


def test_several_words_are_several_options() -> None:
    assert transfer_options.read("acme", ["lanes=2", "crc=1"]) == {"lanes": 2, "crc": True}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lanes"], "'lanes' of .* must be name=value"),
        (["lanes=many"], "lanes is no integer: 'many'"),
        (["crc=maybe"], "crc is no yes/no: 'maybe'"),
        (["lanes=1", "lanes=2"], "'lanes' of .* is given twice"),
        # Neither what the engine itself sets, nor what no word can say.
        (["host=0.0.0.0"], r"no option 'host'; there are crc \(yes/no\), lanes \(integer\)"),
        (["hook=x"], "no option 'hook'"),
    ],
)
def test_a_wrong_word_is_said_in_one_line(words: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        transfer_options.read("acme", words)

    assert "\n" not in str(caught.value)


def test_all_of_them_are_listed() -> None:
    assert transfer_options.catalogue() == (
        "acme       crc (yes/no), lanes (integer), nic (text), pause (number)"
    )


def test_programs_get_the_same_as_data() -> None:
    assert transfer_options.catalogue_json() == {
        "acme": {"crc": "yes/no", "lanes": "integer", "nic": "text", "pause": "number"}
    }


def test_a_plain_engine_takes_none() -> None:
    with pytest.raises(ValueError, match="transfers nothing"):
        EngineSettings(transfer_options=("lanes=1",))
