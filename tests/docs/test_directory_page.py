"""What docs/operations/service-discovery.md tells engines of another make to write into Redis lists them."""

import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from pdgate.cluster.directory import Joined, Listed
from pdgate.cluster.redis_store.directory import RedisDirectory
from tests.cluster.watching import following
from tests.docs.pages import DOCS
from tests.docs.shell import of_page
from tests.support.redis import redis_server

PAGE = DOCS / "operations" / "service-discovery.md"
KEY = "/workers/decode/10.0.0.2/8200"

pytestmark = [pytest.mark.source, pytest.mark.slow]


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="there is no redis-cli")
async def test_the_four_commands_announce_an_engine(tmp_path: Path) -> None:
    typed = [one.text for one in of_page(PAGE) if one.text.startswith("redis-cli")]
    assert len(typed) == 4
    with redis_server(tmp_path) as server:
        # Only the message tells of it in time.
        directory = RedisDirectory(url=server.url, look_seconds=600)
        async with following(directory) as told:
            assert await told.next() == Listed({})
            for text in typed:
                await asyncio.to_thread(_run, text, server.url)

            joined = await told.first(Joined)

    assert (joined.key, joined.member.protocol) == (KEY, "vllm-nixl")


def _run(text: str, url: str) -> None:
    """With a lease that ends in a minute from now."""
    text = re.sub(r"\b17\d{11}\b", str(int(1000 * (time.time() + 60))), text)
    text = text.replace("redis-cli", f"redis-cli -u {url}", 1)
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert "ERR" not in done.stdout
