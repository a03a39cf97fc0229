"""What an instance's record says of its addresses and roles."""

import pytest

from pdgate.protocols.instance import Instance, Role


def at(url: str, kv: str = "") -> Instance:
    return Instance("i", url, Role.PREFILL, "p", kv=kv)


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://10.0.0.1:8100", "10.0.0.1", 8100),
        ("http://engine/base", "engine", 80),
        ("https://engine", "engine", 443),
        ("http://[2001:db8::1]:8100", "2001:db8::1", 8100),
    ],
)
def test_host_and_port_come_from_the_url(url: str, host: str, port: int) -> None:
    assert (at(url).host, at(url).port) == (host, port)


@pytest.mark.parametrize(
    ("kv", "address"),
    [
        ("", ("10.0.0.1", 7)),
        ("10.0.0.2:9", ("10.0.0.2", 9)),
        ("10.0.0.2", ("10.0.0.2", 7)),
        (":9", ("10.0.0.1", 9)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_the_kv_side_is_at_the_same_host_unless_said(kv: str, address: tuple[str, int]) -> None:
    assert at("http://10.0.0.1:8100", kv).kv_address(7) == address


@pytest.mark.parametrize(
    ("role", "served"),
    [
        (Role.PREFILL, {Role.PREFILL}),
        (Role.DECODE, {Role.DECODE}),
        (Role.BOTH, {Role.PREFILL, Role.DECODE, Role.BOTH}),
        (Role.PLAIN, {Role.PLAIN}),
    ],
)
def test_roles_serve_what_they_say(role: Role, served: set[Role]) -> None:
    assert {asked for asked in Role if role.serves(asked)} == served
