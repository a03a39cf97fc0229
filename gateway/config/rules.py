"""What sections of the configuration ask the scheduler for."""

from pdgate.gateway.config.settings import Disaggregation, Health
from pdgate.scheduling.disaggregation import Always, Auto, Never, Rule, UncachedTokensAbove
from pdgate.scheduling.health.breaker import Limits


def rule_of(section: Disaggregation) -> Rule:
    thresholds = UncachedTokensAbove(section.uncached_tokens, section.max_prefill_calls)
    match section.rule:
        case "always":
            return Always()
        case "never":
            return Never()
        case "uncached_tokens_above":
            return thresholds
        case "auto":
            return Auto(thresholds)


def breaker_limits(section: Health) -> Limits:
    return Limits(section.max_failures, section.retry_seconds, section.slow_start_seconds)
