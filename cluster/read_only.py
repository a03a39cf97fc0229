"""Directories that are written elsewhere: a file, DNS, an orchestrator.

An engine cannot announce itself there, and says so at its start instead of serving unheard.
"""

from contextlib import AbstractAsyncContextManager

from pdgate.cluster.directory import Directory, Listing
from pdgate.cluster.member import Member


class CannotAnnounce(ValueError):
    """The message says why, for operators."""


class ReadOnly(Directory):
    def announce(self, member: Member) -> AbstractAsyncContextManager[Listing]:
        """Raises CannotAnnounce."""
        raise CannotAnnounce(
            f"{member.key} cannot announce itself in {type(self).__name__}: "
            "what is listed there is decided elsewhere"
        )
