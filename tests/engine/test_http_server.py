import socket

import pytest

from pdgate.engine import http_server
from pdgate.engine.settings import EngineSettings
from tests.support.ports import LOOPBACK, free_port


def settings(protocol: str, port: int = 0) -> EngineSettings:
    return EngineSettings(
        host=LOOPBACK, port=port, role="prefill", protocol=protocol, kv_host=LOOPBACK
    )


def test_neurons_port_has_a_free_neighbour(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that the system offers, the first two have none."""
    asked: list[int] = []

    def is_free(host: str, port: int) -> bool:
        asked.append(port)
        return len(asked) > 2

    monkeypatch.setattr(http_server, "_is_free", is_free)
    with http_server.listen(settings("neuron")) as found:
        assert len(asked) == 3
        assert found.getsockname()[1] == asked[-1] - 1


def test_a_neighbour_that_listens_is_not_free() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        assert not http_server._is_free(LOOPBACK, taken.getsockname()[1])
        # Not a question of the port: looking for another one would never end.
        assert http_server._is_free("192.0.2.1", free_port())


def test_a_port_that_was_asked_for_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_is_free", lambda host, port: False)
    port = free_port()
    with http_server.listen(settings("neuron", port)) as found:
        assert found.getsockname()[1] == port
