"""The rule that a `disaggregation` section asks for."""

from pdgate.gateway.config.settings import Disaggregation
from pdgate.scheduling.disaggregation import Always, Auto, Never, Rule, UncachedTokensAbove


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
