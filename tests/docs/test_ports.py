"""The page on security has a row for all that listens: whoever adds a port says who may come."""

import re

import pytest

from tests.docs.pages import DOCS, table

PAGE = DOCS / "operations" / "security.md"
ROOT = DOCS.parent
LISTENS = re.compile(
    r"\.create_server\(|\.bind\(|fleet\.listening\(|_bind\(self\.|\bZmtpListener\(\n"
)
OURS = ("cluster", "engine", "forwarders", "gateway", "lab", "protocols", "scheduling", "transfer")

WHERE = {
    "cluster/heartbeats.py": "heartbeats",
    "engine/cache/tier_service.py": "tiers",
    "engine/hand_over/ascend_layerwise.py": "called",
    "engine/hand_over/bootstrap.py": "bootstrap",
    "engine/hand_over/claim_desk.py": "claims",
    "engine/kv_events/publisher.py": "kv-events",
    "engine/hand_over/pushed_blocks.py": "pushed",
    "engine/http_server.py": "engine",
    "engine/neuron/send_buffer.py": "neuron",
    "gateway/callbacks/metaserver.py": "metaserver",
    "gateway/callbacks/notifications.py": "notifications",
    "gateway/listening.py": "gateway",
    "transfer/messenger/service.py": "hand-over",
    "transfer/shm/owner.py": "shm",
    "transfer/tcp/owner.py": "tcp",
    "transfer/external_mover/owner.py": "mooncake",
}
"""File that listens -> first word of its row."""

NOT_LISTENERS = {
    "lab/chaos/proxy.py": "listens where a test puts it, for no longer than that",
    "lab/demo/plan.py": "looks for free ports",
    "lab/processes.py": "looks for a free port",
    "cluster/zmtp/listener.py": "is what notifications and heartbeats make",
    "transfer/runtime/fleet.py": "is what the others call",
}

pytestmark = pytest.mark.source


def test_all_that_listens_has_a_row() -> None:
    found = {
        str(path.relative_to(ROOT))
        for folder in OURS
        for path in (ROOT / folder).rglob("*.py")
        if LISTENS.search(path.read_text(encoding="utf-8"))
    }
    rows = {row[0].split()[0].strip("`,") for row in table(PAGE) if len(row) == 3}

    assert found == WHERE.keys() | NOT_LISTENERS.keys()
    assert set(WHERE.values()) <= rows
