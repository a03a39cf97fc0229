"""Operators see how right the gateway is about its engines."""

from prometheus_client import CollectorRegistry, generate_latest

from pdgate.gateway.metrics.predictions import PredictionMetrics
from pdgate.scheduling.candidate import Candidate
from tests.support.scripted import D0, P0


def test_error_and_bias_are_told_of_each_instance_that_was_predicted() -> None:
    prefill, decode = Candidate(P0), Candidate(D0)
    prefill.predicts.prefill_accuracy.compare(1.5, 1.0)
    for _ in range(3):
        decode.predicts.pace.learn(8, 0, 8 * 0.02, 1, 100)
    registry = CollectorRegistry()
    registry.register(PredictionMetrics([prefill, decode]))

    page = generate_latest(registry).decode()

    assert 'pdgate_prediction_error{instance="p0",of="prefill"} 0.5' in page
    assert 'pdgate_prediction_bias{instance="p0",of="prefill"} 0.5' in page
    assert 'pdgate_predictions_total{instance="d0",of="step"} 1.0' in page
    assert 'instance="d0",of="prefill"' not in page
