"""What a member of a directory is to a gateway, and what finding that out may cost."""

import pytest

from pdgate.cluster.member import Member
from pdgate.gateway.config import Settings
from pdgate.gateway.config.checks import check_kind
from pdgate.gateway.discovery import adopt
from pdgate.gateway.discovery.adopt import UnusableMember, adopter
from pdgate.protocols.instance import Role


def engine(number: int, protocol: str = "vllm-nixl", role: Role = Role.DECODE) -> Member:
    return Member(role, f"10.0.0.{number}", 8000, protocol=protocol)


def test_what_a_member_leaves_out_is_the_gateways_default() -> None:
    instance = adopter(Settings(pdd_protocol="vllm-nixl"))(engine(1, protocol=""))

    assert (instance.id, instance.protocol) == ("10.0.0.1:8000", "vllm-nixl")


def test_a_configured_instance_is_not_replaced() -> None:
    configured = Settings.model_validate(
        {"instances": [{"role": "decode", "url": "http://10.0.0.1:8000"}]}
    )

    with pytest.raises(UnusableMember, match="configured already"):
        adopter(configured)(engine(1))


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (engine(1, protocol="acme"), "such an engine: no protocol is called 'acme'"),
        (engine(1, role=Role.PLAIN), "an engine of the role plain hands no KV over"),
    ],
)
def test_who_cannot_be_spoken_to_is_told_apart(member: Member, why: str) -> None:
    with pytest.raises(UnusableMember, match=why):
        adopter(Settings())(member)


def test_an_announced_static_engine_has_to_name_its_pair() -> None:
    """Another may join at any time, and no call may then cross to a peer that it does not know."""
    adopt_static = adopter(Settings(neuron_generation="static"))

    with pytest.raises(UnusableMember, match="has to say 'pair'"):
        adopt_static(engine(1, protocol="neuron"))
    said = Member(Role.DECODE, "10.0.0.1", 8000, protocol="neuron", pair="first")
    assert adopt_static(said).pair == "first"


def test_engines_of_a_kind_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check looks at all that is installed, and every event of a directory asks for everybody."""
    checked: list[tuple[object, ...]] = []
    check = check_kind

    def counted(settings: Settings, where: str, *kind: str) -> None:
        checked.append(kind)
        check(settings, where, Role(kind[0]), *kind[1:])

    monkeypatch.setattr(adopt, "check_kind", counted)
    usable = adopter(Settings())
    for number in range(9):
        usable(engine(number))
        with pytest.raises(UnusableMember):
            usable(engine(number, protocol="acme"))

    assert checked == [("decode", "vllm-nixl", "")]
