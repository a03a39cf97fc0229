"""Security as the settings describe it; reads the files that they name."""

from importlib.util import find_spec

from pdgate.gateway.config.api_keys import api_keys
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.instances import host_and_port
from pdgate.gateway.config.jwt import check_jwt
from pdgate.gateway.config.settings import Settings
from pdgate.gateway.config.token import read_token
from pdgate.gateway.security import headers, tls
from pdgate.gateway.security.engine_access import EngineAccess
from pdgate.gateway.security.headers import Authorization, HeaderPolicy
from pdgate.protocols.extras import install


def check_security(settings: Settings) -> None:
    """Raises ConfigError for files that will not do, and for what cannot be meant."""
    api_keys(settings.api_keys, settings.api_keys_file)
    check_jwt(settings.jwt)
    if settings.tls.cert_file:
        try:
            tls.server_context(**settings.tls.model_dump())
        except tls.UnusableTlsFile as error:
            raise ConfigError(f"'tls': {error}") from None
    elif settings.tls.key_file or settings.tls.client_ca_file:
        raise ConfigError("'tls' needs 'tls.cert_file': without it clients speak http")
    if settings.engine_tls.key_file and not settings.engine_tls.cert_file:
        raise ConfigError("'engine_tls.key_file' is the key of 'engine_tls.cert_file'")
    if _authorization(settings) == "replace" and not settings.engine_key_file:
        raise ConfigError("'client_authorization' replace needs 'engine_key_file'")
    if settings.engine_key_file and _authorization(settings) == "pass":
        raise ConfigError("engines can have the client's key or 'engine_key_file', not both")
    engine_access(settings)
    if settings.control.enabled and not settings.admin_token_file:
        raise ConfigError("'control.enabled' needs 'admin_token_file'")
    _check_listeners(settings)
    _check_picker(settings)


def _check_listeners(settings: Settings) -> None:
    if not settings.admin_listen:
        if settings.debug_routes and settings.asks_for_keys:
            # A key says who may call, not who may look at others' calls.
            raise ConfigError("'debug_routes' with API keys needs 'admin_listen'")
        if settings.metrics_on == "admin":
            raise ConfigError("'metrics_on' admin needs 'admin_listen'")
        return
    if not settings.admin_token_file:
        raise ConfigError("'admin_listen' needs 'admin_token_file'")
    _, port = host_and_port(settings.admin_listen)
    if port and port == settings.listen.port:
        # The port tells the two apart, whatever the hosts are.
        raise ConfigError("'admin_listen' must have another port than 'listen.port'")


def _check_picker(settings: Settings) -> None:
    given = settings.epp
    if given.key_file and not given.cert_file:
        raise ConfigError("'epp.key_file' is the key of 'epp.cert_file'")
    if given.insecure and given.cert_file:
        raise ConfigError("'epp.insecure' is without TLS, so 'epp.cert_file' is of no use")
    if not given.listen:
        return
    needed = ("grpc", "google.protobuf", *(() if given.insecure else ("cryptography",)))
    if not all(map(_is_installed, needed)):
        raise ConfigError(f"'epp.listen' needs more packages: {install('epp')}")
    if given.cert_file:
        try:
            tls.server_context(given.cert_file, given.key_file, "")
        except tls.UnusableTlsFile as error:
            raise ConfigError(f"'epp': {error}") from None
    _, port = host_and_port(given.listen)
    if port and port == settings.listen.port:
        raise ConfigError("'epp.listen' must have another port than 'listen.port'")


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def engine_access(settings: Settings) -> EngineAccess:
    """Raises ConfigError."""
    section = settings.engine_tls
    context = None
    try:
        # Else the first https URL will have the system's authorities loaded, which takes a while.
        if section.ca_file or section.cert_file:
            context = tls.engine_context(section.ca_file, section.cert_file, section.key_file)
    except tls.UnusableTlsFile as error:
        raise ConfigError(f"'engine_tls': {error}") from None
    file = settings.engine_key_file
    return EngineAccess(
        tls=context,
        server_name=section.server_name,
        authorization=f"Bearer {read_token(file, 'engine_key_file')}" if file else "",
    )


def header_policy(settings: Settings) -> HeaderPolicy:
    return headers.policy(
        _authorization(settings), settings.forward_headers, settings.return_headers
    )


def _authorization(settings: Settings) -> Authorization:
    return headers.authorization_of(
        settings.client_authorization,
        has_keys=settings.asks_for_keys,
        has_own=bool(settings.engine_key_file),
    )
