"""A directory called kubernetes, by its options."""

import pytest

from pdgate.cluster.kubernetes.directory import Kubernetes
from pdgate.cluster.opening import CannotOpen, opened


def test_outside_a_pod_it_is_told_where_the_api_is() -> None:
    words = ["url=http://127.0.0.1:8001", "namespace=llm", "selector=pdgate.dev/role,app=llama"]

    assert isinstance(opened("kubernetes", words), Kubernetes)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "this is no pod"),
        (["token-file=/nowhere"], "of use with a url only"),
        (["url=http://127.0.0.1:8001"], "of which namespace is not said"),
        (["url=https://10.0.0.1:6443", "namespace=llm", "token_file=/nowhere"], "cannot read"),
    ],
)
def test_what_is_missing_is_said(
    words: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(CannotOpen, match=why):
        opened("kubernetes", words)
