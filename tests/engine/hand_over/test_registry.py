import pytest

from pdgate.protocols import plugins
from pdgate.transfer.base import Region
from tests.support.fake_core import FakeCore
from tests.transfer.device.nodes import new_device


def test_an_unknown_protocol_lists_the_known_ones() -> None:
    with pytest.raises(LookupError, match=r"'smoke'; there are .*decode-first, .*sglang"):
        FakeCore("tcp", "smoke", "prefill")


@pytest.mark.parametrize("protocol", ["neuron", "sglang"])
def test_where_the_role_decides_it_has_to_be_one(protocol: str) -> None:
    with pytest.raises(ValueError, match="prefill or decode, not both"):
        FakeCore("tcp", protocol, "both")


def test_a_peer_without_a_port_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="host:port"):
        FakeCore("tcp", "neuron", "decode", peer="somewhere")


class OnDevice(FakeCore):
    def open_regions(self) -> list[Region]:
        size = self.layout.total_bytes
        return [self.backend.register(new_device(0).allocate(size)) for _ in range(self.layout.tp)]


@pytest.mark.parametrize("protocol", ["neuron", "store-mediated", "lmcache"])
def test_protocols_of_host_memory_refuse_a_devices_by_name(protocol: str) -> None:
    with pytest.raises(ValueError, match=f"{protocol} hands over .* host only, not of fake:0"):
        OnDevice("tcp", protocol, "prefill")


def test_all_protocols_are_there() -> None:
    assert plugins.names(plugins.CONNECTORS) == [
        "ascend-layerwise",
        "decode-first",
        "lmcache",
        "lmdeploy",
        "mori-io",
        "neuron",
        "offload-p2p",
        "sglang",
        "store-mediated",
        "tensorrt-llm",
        "tpu",
        "vllm-kvt",
        "vllm-mooncake",
        "vllm-nixl",
    ]
