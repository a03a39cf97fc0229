"""Headers of one request, read once for all parts that want to know what some of them say.

Mostly nothing is said twice, and then one look into `named` tells each of them all there is. Where
something is, a part that must see every one of them goes through `all`.
"""

from pdgate.protocols.call import Headers


class RequestHeaders:
    """
    Attributes:
        all: As they came, names in lower case.
        named: Name -> what it says; the first one, where there are several.
        twice: Whether any name came more than once.
    """

    __slots__ = ("all", "named", "twice")

    def __init__(self, headers: Headers) -> None:
        self.all = headers
        self.named: dict[bytes, bytes] = dict(headers)
        self.twice = len(self.named) != len(headers)
        if self.twice:
            self.named = dict(reversed(headers))

    def times(self, name: bytes) -> int:
        """How often that name came."""
        if not self.twice:
            return int(name in self.named)
        return sum(each == name for each, _ in self.all)
