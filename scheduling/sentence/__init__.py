"""Former name of pdgate.scheduling.pipeline, with the policy as it was made then."""

from collections.abc import Sequence
from warnings import warn

from pdgate.scheduling.former import former
from pdgate.scheduling.pipeline.pipeline import Pipeline
from pdgate.scheduling.pipeline.scorers import Filter, Picker, Scorer
from pdgate.scheduling.policy import Policy
from pdgate.scheduling.policy_context import Prefixes

__getattr__ = former(__name__, "pdgate.scheduling.pipeline", {"Pick": "Picker"})


class Sentence(Pipeline):
    """Pipeline by its former arguments: keep, prefer, choose."""

    def __init__(
        self,
        *,
        keep: Sequence[Filter] = (),
        prefer: Sequence[tuple[float, Scorer]],
        choose: Picker,
        otherwise: Policy | None = None,
        near: float = 0.0,
        prefixes: Prefixes | None = None,
    ) -> None:
        warn(
            "Sentence(keep, prefer, choose) is Pipeline(filters, scorers, picker) now",
            DeprecationWarning,
            stacklevel=2,
        )
        super().__init__(
            filters=keep,
            scorers=prefer,
            picker=choose,
            otherwise=otherwise,
            near=near,
            prefixes=prefixes,
        )
