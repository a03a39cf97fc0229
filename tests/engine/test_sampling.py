from collections import Counter

import numpy as np
import pytest

from pdgate.engine.request import Sampling
from pdgate.engine.sampling import LEAST_LOGPROB, Sampler, logprob

# Probabilities 0.4, 0.3, 0.2, 0.1 in mixed order.
SHARES = {2: 0.4, 0: 0.3, 3: 0.2, 1: 0.1}
LOGITS = np.log([SHARES[token] for token in range(4)]).astype(np.float32)


def draws(sampling: Sampling, count: int = 2000) -> Counter[int]:
    sampler = Sampler(sampling)
    return Counter(sampler.choose(LOGITS) for _ in range(count))


def test_zero_temperature_takes_the_likeliest() -> None:
    assert set(draws(Sampling(temperature=0), 10)) == {2}


def test_draws_follow_the_probabilities() -> None:
    found = draws(Sampling(seed=1), 4000)

    for token, share in SHARES.items():
        assert found[token] / 4000 == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize(
    ("sampling", "left"),
    [
        (Sampling(seed=1, top_k=2), {2, 0}),
        (Sampling(seed=1, top_p=0.65), {2, 0}),
        (Sampling(seed=1, top_p=0.75), {2, 0, 3}),
        (Sampling(seed=1, min_p=0.6), {2, 0}),
        (Sampling(seed=1, top_k=3, top_p=0.5), {2, 0}),
        (Sampling(seed=1, top_p=0.01), {2}),
    ],
)
def test_filters_leave_the_likeliest(sampling: Sampling, left: set[int]) -> None:
    assert set(draws(sampling)) == left


def test_a_seed_repeats_the_draws() -> None:
    first, second = Sampler(Sampling(seed=7)), Sampler(Sampling(seed=7))

    assert [first.choose(LOGITS) for _ in range(50)] == [second.choose(LOGITS) for _ in range(50)]


def test_forbidden_tokens_are_never_chosen() -> None:
    assert Sampler(Sampling(temperature=0)).choose(LOGITS, {2}) == 0


def test_logprobs_are_of_the_raw_logits_best_first() -> None:
    found = logprob(LOGITS, 1, 2)

    assert found.logprob == pytest.approx(np.log(0.1), abs=1e-5)
    assert [token for token, _ in found.top] == [2, 0]


def test_impossible_tokens_have_a_finite_logprob() -> None:
    """JSON has no infinity."""
    logits = np.array([0.0, -np.inf], np.float32)

    assert logprob(logits, 1, 0).logprob == LEAST_LOGPROB


def test_tokens_that_are_nearly_as_likely_do_not_change_places() -> None:
    """Rounding decides which of them is likelier, and must not decide which is drawn."""
    logits = np.zeros(8, dtype=np.float32)
    other = logits.copy()
    other[::2] += 1e-5
    sampling = Sampling(temperature=1.0, seed=5)

    drawn, as_well = Sampler(sampling), Sampler(sampling)

    assert [drawn.choose(logits) for _ in range(200)] == [as_well.choose(other) for _ in range(200)]
