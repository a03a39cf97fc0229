"""Rules that sections of the configuration ask for, in the terms of the parts that follow them."""

from pdgate.forwarders.retry import RetryPolicy
from pdgate.gateway.config.sections import DisaggregationSection, HealthSection, TimeoutsSection
from pdgate.gateway.config.settings import Settings
from pdgate.gateway.deadlines import Timeouts
from pdgate.gateway.total_time import TotalTime
from pdgate.scheduling.disaggregation import Always, Auto, Never, SplitRule, UncachedTokensAbove
from pdgate.scheduling.health.breaker import BreakerLimits

_TIMES = set(TimeoutsSection.model_fields)


def rule_of(section: DisaggregationSection) -> SplitRule:
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


def breaker_limits(section: HealthSection) -> BreakerLimits:
    return BreakerLimits(section.max_failures, section.retry_seconds, section.slow_start_seconds)


def retry_policy_of(settings: Settings) -> RetryPolicy:
    return RetryPolicy(
        settings.max_attempts, settings.on_prefill_failure, settings.timeouts.retry_seconds
    )


def timeouts_of(section: TimeoutsSection) -> Timeouts:
    return Timeouts(
        connect_seconds=section.connect_seconds,
        prefill_seconds=section.prefill_seconds,
        first_byte_seconds=section.first_byte_seconds,
        kv_wait_seconds=section.kv_wait_seconds or section.first_byte_seconds,
        idle_seconds=section.idle_seconds,
        total_seconds=section.total_seconds,
    )


def total_time_of(settings: Settings) -> TotalTime | None:
    """Return the limits on total time; None where no call has one."""
    of_models = {
        model: times.total_seconds for model, times in timeouts_of_models(settings).items()
    }
    total = TotalTime(settings.timeouts.total_seconds, of_models)
    return total if total.limits_any else None


def timeouts_of_models(settings: Settings) -> dict[str | None, Timeouts]:
    """Model -> its own timeouts, those that it does not give being those of all models."""
    return {
        model.name: timeouts_of(
            settings.timeouts.model_copy(update=model.model_dump(include=_TIMES, exclude_none=True))
        )
        for model in settings.models
    }
