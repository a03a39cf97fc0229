"""A directory that Kubernetes keeps: engines are the pods behind labelled Services.

    pdgate serve --directory kubernetes                              in a pod
    directory = opened(url="http://127.0.0.1:8001", namespace="llm")     outside, by kubectl proxy

No engine announces itself there: the label of a Service announces its pods, and the kubelet
says which are ready. What the labels are: slices.py. Why not a client package:
docs/decisions/0009-kubernetes-over-http.md.
"""

import os
from contextlib import AbstractAsyncContextManager

from pdgate.cluster.directory import Listing, Tell
from pdgate.cluster.kubernetes.access import KubernetesAccess, checked, in_pod
from pdgate.cluster.kubernetes.follow import KubernetesFollower, Timing
from pdgate.cluster.kubernetes.slices import ROLE
from pdgate.cluster.member import Member
from pdgate.cluster.read_only import CannotAnnounce, ReadOnly


class Kubernetes(ReadOnly):
    def __init__(self, access: KubernetesAccess, timing: Timing | None = None) -> None:
        self._access = access
        self._timing = timing or Timing()

    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        """Raises CannotAnnounce."""
        raise CannotAnnounce(
            f"{member.key} cannot announce itself to Kubernetes: "
            f"label the Service of its pods ({ROLE}), and it is found"
        )

    async def follow(self, tell: Tell) -> None:
        await KubernetesFollower(self._access, tell, self._timing).run()


def opened(
    *,
    url: str = "",
    namespace: str = "",
    selector: str = ROLE,
    token_file: str = "",
    ca_file: str = "",
) -> Kubernetes:
    """Directory of a cluster; without a URL, of the one whose pod this is, with the pod's service account.

    Raises ValueError.
    """
    if url:
        return Kubernetes(checked(KubernetesAccess(url, namespace, selector, token_file, ca_file)))
    if token_file or ca_file:
        raise ValueError("token_file and ca_file are of use with a url only: a pod has its own")
    return Kubernetes(in_pod(os.environ, selector, namespace))
