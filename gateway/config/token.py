"""Secrets in files of their own, so that neither `ps` nor a log shows them."""

from pdgate.cluster import secret
from pdgate.gateway.config.complaints import ConfigError


def read_token(path: str, key: str = "admin_token_file") -> str:
    """`key` names the file in errors. Raises ConfigError, without the secret."""
    try:
        return secret.token(path)
    except ValueError as error:
        raise ConfigError(f"{key!r}: {error}") from None
