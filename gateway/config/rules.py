"""What sections of the configuration ask for, in the words of those who do it."""

from pdgate.forwarders.retrying import Retrying
from pdgate.gateway.config.settings import Disaggregation, Health, Settings
from pdgate.gateway.config.settings import Timeouts as TimeoutsSection
from pdgate.gateway.deadlines import Timeouts
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


def retrying_of(settings: Settings) -> Retrying:
    return Retrying(
        settings.max_attempts, settings.on_prefill_failure, settings.timeouts.retry_seconds
    )


def timeouts_of(section: TimeoutsSection) -> Timeouts:
    return Timeouts(
        connect_seconds=section.connect_seconds,
        prefill_seconds=section.prefill_seconds,
        first_byte_seconds=section.first_byte_seconds,
        idle_seconds=section.idle_seconds,
    )
