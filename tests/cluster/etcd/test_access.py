"""An etcd that speaks TLS is followed only if somebody vouches for it whom we were told to trust."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdgate.cluster.directory import Joined, Listed, Lost
from pdgate.cluster.etcd.directory import Etcd
from pdgate.cluster.trust import check_ca
from tests.cluster.watching import P, following
from tests.support.etcd import EtcdServer, etcd_server


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Of 127.0.0.1, which vouches for itself; and its key."""
    folder = tmp_path_factory.mktemp("certificate")
    made, key = folder / "etcd.pem", folder / "etcd.key"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    whose = ("-subj", "/CN=etcd", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        ["openssl", "req", "-x509", *curve, *whose, "-days", "1", "-keyout", key, "-out", made],
        check=True,
        capture_output=True,
    )
    return made, key


@pytest.fixture(scope="module")
def etcd(
    certificate: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd"), *certificate) as server:
        yield server


async def test_who_is_vouched_for_is_announced_to_and_followed(
    etcd: EtcdServer, certificate: tuple[Path, Path]
) -> None:
    directory = Etcd(etcd.secure, ca_file=str(certificate[0]))
    async with following(directory) as told:
        assert await told.next() == Listed({})
        async with directory.announce(P):
            assert await told.next() == Joined(P.key, P)


async def test_a_stranger_is_told_nothing(etcd: EtcdServer) -> None:
    async with following(Etcd(etcd.secure)) as told:
        lost = await told.first(Lost)

    assert "CERTIFICATE_VERIFY_FAILED" in lost.why


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_without_a_certificate_is_refused_at_the_start(
    tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)

    with pytest.raises(ValueError, match=str(path)):
        check_ca(str(path))
