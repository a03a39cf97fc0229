"""How right the gateway was about how long its engines take, on /metrics.

Of both kinds a mean of the last fifty or so, for each instance:

    prefill   seconds until a prompt was read, as expected when its call was sent there
    step      seconds between tokens, of each stretch of a stream that was watched, or of what the
              engine said
"""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.scheduling.candidate import Candidate


class PredictionMetrics(Collector):
    def __init__(self, candidates: Iterable[Candidate]) -> None:
        self._candidates = candidates

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        labels = ("instance", "of")
        error = GaugeMetricFamily(
            "pdgate_prediction_error",
            "By how much predicted seconds were off lately, as a share of those seen.",
            labels=labels,
        )
        bias = GaugeMetricFamily(
            "pdgate_prediction_bias",
            "By how much they were too long lately (below 0: too short), as a share.",
            labels=labels,
        )
        compared = CounterMetricFamily(
            "pdgate_predictions", "Predictions that were compared with what came.", labels=labels
        )
        for candidate in self._candidates:
            predicts = candidate.predicts
            both = ("prefill", predicts.prefill_accuracy), ("step", predicts.pace.accuracy)
            for of, accuracy in both:
                if accuracy.compared:
                    key = candidate.instance.id, of
                    error.add_metric(key, accuracy.error)
                    bias.add_metric(key, accuracy.bias)
                    compared.add_metric(key, accuracy.compared)
        yield error
        yield bias
        yield compared
