"""The secret that opens the admin routes."""

from pdgate.cluster import secret
from pdgate.gateway.config.complaints import ConfigError


def read_token(path: str) -> str:
    """Raises ConfigError, without the secret."""
    try:
        return secret.token(path)
    except ValueError as error:
        raise ConfigError(f"'admin_token_file': {error}") from None
