"""Usage of an engine: when it was at work, in slices of the simulated time."""


class SimulatedUsage:
    """
    Attributes:
        busy_seconds: In all.
        slices: Busy seconds of each slice, as far as it was ever at work.
    """

    __slots__ = ("busy_seconds", "slice_seconds", "slices")

    def __init__(self, slice_seconds: float) -> None:
        self.slice_seconds = slice_seconds
        self.busy_seconds = 0.0
        self.slices: list[float] = []

    def worked(self, begin: float, end: float) -> None:
        self.busy_seconds += end - begin
        width, slices = self.slice_seconds, self.slices
        number = int(begin / width)
        while begin < end:
            while len(slices) <= number:
                slices.append(0.0)
            border = (number + 1) * width
            slices[number] += min(end, border) - begin
            begin = border
            number += 1
