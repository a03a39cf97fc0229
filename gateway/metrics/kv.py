"""Where the KV of split calls is, as far as this process knows. Ages are looked at when asked."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from pdgate.forwarders.lives import Lives
from pdgate.forwarders.ownership import KvLedger
from pdgate.protocols.instance import Role
from pdgate.scheduling.candidate import Candidate


class KvMetrics(Collector):
    def __init__(self, ledger: KvLedger, lives: Lives, fleet: Iterable[Candidate]) -> None:
        self._ledger = ledger
        self._fleet = fleet
        self._lives = lives

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        yield GaugeMetricFamily(
            "pdgate_kv_held",
            "Prompts whose KV a prefill engine holds for a decode engine.",
            self._ledger.held,
        )
        stranded = GaugeMetricFamily(
            "pdgate_kv_stranded",
            "Prompts whose KV an engine keeps for nobody, at most.",
            labels=("instance",),
        )
        for instance, prompts in self._ledger.stranded().items():
            stranded.add_metric((instance,), prompts)
        yield stranded
        strandings = CounterMetricFamily(
            "pdgate_kv_strandings",
            "Prompts whose KV an engine has kept for nobody, until its lease was over.",
            labels=("instance",),
        )
        prefills = [
            one.instance.id for one in self._fleet if one.instance.role.serves(Role.PREFILL)
        ]
        for instance, prompts in {**dict.fromkeys(prefills, 0), **self._ledger.strandings}.items():
            strandings.add_metric((instance,), prompts)
        yield strandings
        pinned = GaugeMetricFamily(
            "pdgate_pinned_engine_id",
            "1 for prefill engines that came back under their old engine id, and fail since.",
            labels=("instance",),
        )
        for instance in sorted(self._lives.pinned):
            pinned.add_metric((instance,), 1)
        yield pinned
