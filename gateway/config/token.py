"""The secret that opens the admin routes: a file, so that neither `ps` nor a log shows it."""

from pathlib import Path

from pdgate.gateway.config.complaints import ConfigError

LEAST_CHARACTERS = 16


def read_token(path: str) -> str:
    """Raises ConfigError, without the secret."""
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"'admin_token_file': cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"'admin_token_file': {path} is not ASCII") from None
    if len(token) < LEAST_CHARACTERS or not token.isprintable() or " " in token:
        raise ConfigError(
            f"'admin_token_file': {path} must hold at least {LEAST_CHARACTERS} characters, none a space"
        )
    return token
