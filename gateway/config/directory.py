"""The directory that the settings name, if any.

directory = "redis"          what a package declares by entry point, ours among them
directory_options = [...]    its own; what `etcd...` and `redis` say need not be said again
etcd = "http://..."          is short for directory = "etcd" and its options
"""

from pdgate.cluster.directory import Directory
from pdgate.cluster.opening import CannotOpen, opened
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.settings import Settings


def directory_of(settings: Settings) -> Directory | None:
    """Make the directory, which connects to nothing yet. Raise ConfigError."""
    name = settings.directory or ("etcd" if settings.etcd else "")
    if not name:
        if settings.directory_options:
            raise ConfigError("'directory_options' are of no use without a 'directory'")
        return None
    if settings.etcd and name != "etcd":
        raise ConfigError(f"'etcd' and 'directory': there is one directory, not etcd and {name!r}")
    try:
        directory = opened(name, settings.directory_options, _implied(settings, name))
    except CannotOpen as error:
        raise ConfigError(f"'directory': {error}") from None
    if directory.one_process and settings.listen.workers > 1:
        raise ConfigError(
            f"'listen.workers': engines tell the directory {name!r} at one port, so a gateway that "
            f"follows it is one process, and not {settings.listen.workers}"
        )
    return directory


def _implied(settings: Settings, name: str) -> dict[str, str]:
    """Of ours only: a directory of another package does not learn where our Redis is."""
    match name:
        case "etcd":
            return {
                "urls": settings.etcd,
                "user_file": settings.etcd_user_file,
                "ca_file": settings.etcd_ca_file,
            }
        case "redis":
            return {"url": settings.redis}
        case _:
            return {}
