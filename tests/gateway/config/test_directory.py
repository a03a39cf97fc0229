"""Which directory the settings mean, and which they cannot mean."""

from typing import Any

import pytest

from pdgate.cluster.etcd.directory import Etcd
from pdgate.cluster.file import File
from pdgate.cluster.redis_store.directory import RedisDirectory
from pdgate.gateway.config import ConfigError, load
from pdgate.gateway.config.directory import directory_of

ETCD, REDIS = "http://10.0.0.9:2379", "redis://10.0.0.9:6379/0"


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({}, None),
        # Replicas may share there what they like, and find their engines elsewhere.
        ({"redis": REDIS}, None),
        ({"etcd": ETCD}, Etcd),
        ({"etcd": ETCD, "directory": "etcd"}, Etcd),
        ({"directory": "etcd", "directory_options": [f"urls={ETCD}"]}, Etcd),
        ({"directory": "redis", "redis": REDIS}, RedisDirectory),
        ({"directory": "redis", "directory_options": [f"url={REDIS}"]}, RedisDirectory),
        ({"directory": "file", "directory_options": ["path=x.toml"], "redis": REDIS}, File),
    ],
    ids=str,
)
def test_a_directory_is_what_the_settings_name(keys: dict[str, Any], kind: type | None) -> None:
    made = directory_of(load(None, keys))

    assert made is None if kind is None else isinstance(made, kind)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"directory": "zookeeper"}, "no directory is called 'zookeeper'; there are "),
        ({"directory": "redis"}, "needs the option 'url'"),
        ({"directory": "redis", "etcd": ETCD, "redis": REDIS}, "not etcd and 'redis'"),
        ({"directory_options": ["path=x"]}, "without a 'directory'"),
        ({"directory": "file", "directory_options": ["x"]}, "must be name=value"),
        # The second worker could not listen, and knew of no engine.
        (
            {"directory": "mori-io", "listen.workers": 2},
            "'listen.workers'.* is one process, and not 2",
        ),
    ],
    ids=str,
)
def test_a_mistake_ends_the_start_in_one_line(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        load(None, keys)

    assert "\n" not in str(caught.value)
