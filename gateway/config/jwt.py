"""Signed tokens of an identity provider as they are configured: who issues them, and what each is held to.

[jwt]
issuer = "https://login.example.com/realms/llm"
audience = "pdgate"
jwks = "https://login.example.com/realms/llm/protocol/openid-connect/certs"

[[jwt.tenants]]
claim = "groups"
value = "research"
models = ["llama"]
tokens_per_day = 5000000
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from pdgate.gateway.config.api_keys import LimitsEntry
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.setting import SECURITY, OnReload, Section, Setting
from pdgate.protocols.extras import install

if TYPE_CHECKING:
    from pdgate.gateway.config.settings import Settings
    from pdgate.gateway.tenants.tokens import TokenChecks


class JwtTenantEntry(LimitsEntry):
    """What tokens are held to that have a claim.

    Attributes:
        claim: Name of a claim, as groups or realm_access.roles; empty for all tokens.
        value: That it is, or has among others.
    """

    claim: str = ""
    value: str = ""


class JwtSection(Section, panel=SECURITY):
    """Signed tokens of an identity provider (OIDC), which open the gateway beside API keys (extra `jwt`)."""

    issuer: Annotated[
        str, Setting("Take tokens (JWT) that this provider has signed, by its iss.", "--jwt-issuer")
    ] = ""
    """What tokens have as `iss`; empty to take none."""
    audience: Annotated[str, Setting("What they have to have as aud.", "--jwt-audience")] = ""
    """What tokens have among their `aud`."""
    jwks: Annotated[str, Setting("URL or file of the provider's keys (JWKS).", "--jwt-jwks")] = ""
    """URL (https) or file of the provider's keys, read every 5 minutes."""
    name_claim: Annotated[
        str, Field(min_length=1), Setting("Claim that names the tenant.", "--jwt-name-claim")
    ] = "sub"
    """The claim that names the tenant, which is jwt:<claim> in logs and usage."""
    tenants: Annotated[
        tuple[JwtTenantEntry, ...],
        Setting("What tokens are held to.", flag=None, on_reload=OnReload.KEYS),
    ] = ()


def check_jwt(section: JwtSection) -> None:
    """Raise ConfigError for what cannot be meant, and for keys that are no use."""
    if not section.issuer:
        for key in ("audience", "jwks", "tenants"):
            if getattr(section, key):
                raise ConfigError(f"'jwt.{key}' needs 'jwt.issuer'")
        return
    for key in ("audience", "jwks"):
        if not getattr(section, key):
            raise ConfigError(f"'jwt.issuer' needs 'jwt.{key}'")
    if find_spec("jwt") is None or find_spec("cryptography") is None:
        raise ConfigError(f"'jwt.issuer' needs more packages: {install('jwt')}")
    from pdgate.gateway.tenants.jwks import check_source

    try:
        check_source(section.jwks)
    except ValueError as error:
        raise ConfigError(f"'jwt.jwks': {error}") from None
    for at, entry in enumerate(section.tenants):
        if bool(entry.claim) != bool(entry.value):
            raise ConfigError(f"'jwt.tenants[{at}]': 'claim' and 'value' belong together")
        if not entry.claim and at < len(section.tenants) - 1:
            raise ConfigError(
                f"'jwt.tenants[{at}]' is for all tokens, so those behind it are for none"
            )


def token_checks(settings: "Settings") -> "TokenChecks":
    # Where no tokens are taken, what checks them is not loaded.
    from pdgate.gateway.tenants.tokens import ClaimRule, TokenChecks

    section, own = settings.jwt, settings.aliases
    rules = [
        ClaimRule(entry.claim, entry.value, entry.as_key("", "", own)) for entry in section.tenants
    ]
    return TokenChecks(section.issuer, section.audience, section.name_claim, rules)
