"""Reader, verifier and report of one gateway process, put together."""

from collections.abc import Callable

from pdgate.gateway.engine_metrics.reader import Reader
from pdgate.gateway.security.engine_access import OPEN, EngineAccess
from pdgate.gateway.verification.report import Report
from pdgate.gateway.verification.verifier import Verifier
from pdgate.scheduling.instances import Instances


class Watch:
    """
    Attributes:
        reader: Reads pages inside its `run`.
        verifier: Is shown every page.
        report: What has been found.
    """

    def __init__(
        self,
        instances: Instances,
        interval_seconds: float,
        timeout_seconds: float,
        clock: Callable[[], float],
        access: EngineAccess = OPEN,
    ) -> None:
        self.verifier = Verifier(instances)
        sees = self.verifier.sees
        self.reader = Reader(instances, interval_seconds, timeout_seconds, sees, clock, access)
        self.report = Report(instances, self.reader, self.verifier)
