"""A directory that Kubernetes keeps: engines are the pods behind labelled Services.

    directory = Kubernetes(in_pod(os.environ))

Nobody announces itself there: whoever labels a Service has announced its pods, and the kubelet
says which are ready. What the labels are: kubernetes_slices.py. Why not a client package:
docs/decisions/0009-kubernetes-over-http.md.
"""

from contextlib import AbstractAsyncContextManager

from pdgate.cluster.directory import Listing, Tell
from pdgate.cluster.kubernetes_access import Access
from pdgate.cluster.kubernetes_follow import Follower, Timing
from pdgate.cluster.kubernetes_slices import ROLE
from pdgate.cluster.member import Member
from pdgate.cluster.read_only import CannotAnnounce, ReadOnly


class Kubernetes(ReadOnly):
    def __init__(self, access: Access, timing: Timing | None = None) -> None:
        self._access = access
        self._timing = timing or Timing()

    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        """Raises CannotAnnounce."""
        raise CannotAnnounce(
            f"{member.key} cannot announce itself to Kubernetes: "
            f"label the Service of its pods ({ROLE}), and it is found"
        )

    async def follow(self, tell: Tell) -> None:
        await Follower(self._access, tell, self._timing).run()
