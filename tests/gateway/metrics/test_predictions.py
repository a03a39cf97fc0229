"""Operators see how right the gateway is about its engines."""

from functools import partial

from prometheus_client import generate_latest

from pdgate.gateway.metrics.page import registry_of
from pdgate.gateway.wiring import metrics
from pdgate.scheduling.endpoint import Endpoint
from tests.support.scripted import D0, P0


def test_error_and_bias_are_told_of_each_instance_that_was_predicted() -> None:
    prefill, decode = Endpoint(P0), Endpoint(D0)
    prefill.latency.prefill_accuracy.compare(1.5, 1.0)
    for _ in range(3):
        decode.latency.step_time.learn(8, 0, 8 * 0.02, 1, 100)
    predictions = partial(metrics.predictions, [prefill, decode])

    page = generate_latest(registry_of(predictions)).decode()

    assert 'pdgate_prediction_error{instance="p0",of="prefill"} 0.5' in page
    assert 'pdgate_prediction_bias{instance="p0",of="prefill"} 0.5' in page
    assert 'pdgate_predictions_total{instance="d0",of="step"} 1.0' in page
    assert 'instance="d0",of="prefill"' not in page
