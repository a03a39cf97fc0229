"""One string says which queue it is and how it behaves."""

import pytest

from pdgate.cluster.queue import settings
from pdgate.cluster.queue.settings import QueueSettings


def test_our_options_are_taken_out_of_the_url() -> None:
    read = settings.read("redis://u:p@h:6379/2?capacity=5&tries=2&redeliver_seconds=0.5")

    assert read == QueueSettings("redis://u:p@h:6379/2", 5, 2, 0.5)


def test_without_options_there_are_defaults() -> None:
    assert settings.read("memory://it") == QueueSettings("memory://it")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "memory://name"),
        ("redis://", "memory://name"),
        ("kafka://secret@h", "memory://name"),
        ("redis://h?size=3", "'size'"),
        ("redis://h?tries=2.5", "tries='2.5'"),
        ("redis://h?capacity=0", "capacity"),
        ("redis://h?redeliver_seconds=nan", "redeliver_seconds"),
        ("redis://h?redeliver_seconds=inf", "redeliver_seconds"),
    ],
)
def test_what_is_wrong_is_named_without_secrets(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named) as error:
        settings.read(text)
    assert "secret" not in str(error.value)
