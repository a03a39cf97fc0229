"""Where the API is and who we are, as a pod is told it; never a secret in a message."""

import ssl
from pathlib import Path

import pytest

from pdgate.cluster.kubernetes.access import KubernetesAccess, checked, in_pod
from tests.support.certificates import Authority

TOKEN = "eyJhbGciOiJSUzI1NiJ9.first.signature"
POD = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def account(tmp_path: Path, authority: Authority) -> Path:
    """A service account, as the kubelet mounts it."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "namespace").write_text("llm")
    (tmp_path / "ca.crt").write_text(Path(authority.cert).read_text())
    return tmp_path


def test_a_pod_is_told_all_there_is_to_know(account: Path) -> None:
    access = in_pod(POD, folder=account)

    assert (access.url, access.namespace) == ("https://10.96.0.1:443", "llm")
    assert access.headers() == {"authorization": f"Bearer {TOKEN}"}
    assert isinstance(access.trust(), ssl.SSLContext)


def test_a_pod_may_read_another_namespace(account: Path) -> None:
    assert in_pod(POD, folder=account, namespace="engines").namespace == "engines"


def test_the_address_of_a_cluster_may_be_ipv6(account: Path) -> None:
    environ = {**POD, "KUBERNETES_SERVICE_HOST": "fd00::1"}

    assert in_pod(environ, folder=account).url == "https://[fd00::1]:443"


def test_outside_a_pod_that_is_said() -> None:
    with pytest.raises(ValueError, match="this is no pod"):
        in_pod({})


def test_a_pod_without_a_service_account_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="namespace: No such file"):
        in_pod(POD, folder=tmp_path)


def test_a_token_is_read_again_and_again(account: Path) -> None:
    """The kubelet replaces it before it expires."""
    access = in_pod(POD, folder=account)
    (account / "token").write_text("eyJhbGciOiJSUzI1NiJ9.second.signature")

    assert access.headers() == {"authorization": "Bearer eyJhbGciOiJSUzI1NiJ9.second.signature"}


@pytest.mark.parametrize("url", ["10.0.0.1:6443", "ftp://10.0.0.1:6443", "https://10.0.0.1:6443/x"])
def test_the_api_is_at_a_url_without_a_path(url: str) -> None:
    with pytest.raises(ValueError, match="not a URL"):
        checked(KubernetesAccess(url, "llm"))


def test_a_token_is_not_sent_in_the_clear(account: Path) -> None:
    token = str(account / "token")

    with pytest.raises(ValueError, match="by https only"):
        checked(KubernetesAccess("http://10.0.0.1:8001", "llm", token_file=token))
    assert checked(KubernetesAccess("http://127.0.0.1:8001", "llm", token_file=token))


def test_a_namespace_must_be_said() -> None:
    with pytest.raises(ValueError, match="namespace"):
        checked(KubernetesAccess("https://10.0.0.1:6443", ""))


def test_a_file_that_cannot_be_used_is_named(account: Path) -> None:
    (account / "ca.crt").write_text("no certificate")
    with pytest.raises(ValueError, match=r"ca\.crt holds no certificate"):
        in_pod(POD, folder=account)
    (account / "token").write_text("")
    with pytest.raises(ValueError, match="token must hold"):
        in_pod(POD, folder=account)


def test_an_authority_of_the_old_kind_is_good_enough(account: Path) -> None:
    """Python 3.13 asks for more than the authorities of some clusters have."""
    trust = in_pod(POD, folder=account).trust()

    assert isinstance(trust, ssl.SSLContext)
    assert not trust.verify_flags & ssl.VERIFY_X509_STRICT
    assert (trust.verify_mode, trust.check_hostname) == (ssl.CERT_REQUIRED, True)
