"""Do the protocols, policies and other things that a configuration names exist, and can they do it?

They come by entry point from any installed package, or lie on the disk, so the types of the
tree cannot say.
"""

from importlib.util import find_spec

from pdgate.cluster import secret
from pdgate.forwarders import registry
from pdgate.forwarders.base import Mode
from pdgate.gateway.config.batches import check_batches
from pdgate.gateway.config.complaints import ConfigError
from pdgate.gateway.config.directory import directory_of
from pdgate.gateway.config.security import check_security
from pdgate.gateway.config.settings import Settings
from pdgate.gateway.config.token import read_token
from pdgate.gateway.kv_events.sources import ASK
from pdgate.protocols import plugins
from pdgate.protocols.dialects.neuron import crossed
from pdgate.protocols.extras import install
from pdgate.protocols.instance import Instance, Role


def check(settings: Settings) -> None:
    """Raises ConfigError for a name that is not installed, or a mode that cannot be had."""
    for key in ("prefill_policy", "decode_policy", "plain_policy"):
        _check_policy(key, getattr(settings, key))
        for model in settings.models:
            if name := getattr(model, key):
                _check_policy(f"models.{model.name}.{key}", name)
    _check_protocol("'pdd_protocol'", settings, settings.pdd_protocol)
    for model in settings.models:
        if model.pdd_protocol:
            _check_protocol(f"'models.{model.name}'", settings, model.pdd_protocol)
    kinds: dict[tuple[Role, str, str], Instance] = {}
    for instance in settings.fleet:
        kinds.setdefault((instance.role, instance.protocol, instance.generation), instance)
    for instance in kinds.values():
        check_instance(settings, instance)
    if found := crossed(settings.fleet):
        one, other = found
        raise ConfigError(
            f"the instances {one.id!r} and {other.id!r} are both {one.role} engines of neuron "
            "generation static, which know one peer each: name what belongs together with 'pair'"
        )
    if settings.listen.workers > 1:
        for protocol in {settings.pdd_protocol, *(one.protocol for one in settings.fleet)}:
            if registry.one_process(protocol):
                raise ConfigError(
                    f"'workers': engines of {protocol} are joined by one gateway process; run several gateways, "
                    "each for engines of its own"
                )
    directory_of(settings)
    check_security(settings)
    if settings.admin_token_file:
        read_token(settings.admin_token_file)
    if settings.redis and find_spec("redis") is None:
        raise ConfigError(f"'redis' needs one more package: {install('redis')}")
    if settings.kv_events.secret_file:
        if find_spec("nacl") is None:
            needed = install("kv-events")
            raise ConfigError(f"'kv_events.secret_file' needs one more package: {needed}")
        try:
            secret.several(settings.kv_events.secret_file)
        except ValueError as error:
            raise ConfigError(f"'kv_events.secret_file': {error}") from None
        if settings.kv_events.endpoint not in ("", ASK):
            raise ConfigError("'kv_events.secret_file' needs 'kv_events.endpoint' ask")
    check_batches(settings.batch)
    if settings.tracing.endpoint and not _can_trace():
        raise ConfigError(f"'tracing.endpoint' needs more packages: {install('otel')}")


def _can_trace() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        # One of those above it; others may have brought some of them.
        return False


def check_instance(settings: Settings, instance: Instance) -> None:
    """Raises ConfigError for an instance that nothing installed can speak to, or not so."""
    where = f"the instance {instance.id!r}"
    check_kind(settings, where, instance.role, instance.protocol, instance.generation)


def check_kind(settings: Settings, where: str, role: Role, protocol: str, generation: str) -> None:
    """The same for any such instance: it takes 10 ms, as it looks at all that is installed."""
    _check_protocol(where, settings, protocol, generation)
    _check_role(where, role, protocol)
    if generation:
        _check_generation(where, settings, protocol, generation)


def mode_for(settings: Settings, protocol: str) -> Mode:
    """The mode that was asked for, else the one that the protocol prefers: batch if it can."""
    if settings.scheduling_mode:
        return settings.scheduling_mode
    return Mode.STAGED if registry.modes(protocol)[Mode.BATCH] else Mode.BATCH


def _check_policy(key: str, name: str) -> None:
    try:
        plugins.find(plugins.POLICIES, "policy", name)
    except LookupError as error:
        raise ConfigError(f"{key!r}: {error.args[0]}") from None


def _check_protocol(where: str, settings: Settings, protocol: str, generation: str = "") -> None:
    generation = generation or settings.generation(protocol)
    mode = settings.scheduling_mode
    try:
        modes = registry.modes(protocol, generation)
    except LookupError as error:
        raise ConfigError(f"{where}: {error.args[0]}") from None
    if mode and modes[mode]:
        spelled = f"{protocol} generation {generation}" if generation else protocol
        raise ConfigError(f"{where}: {spelled} cannot do {mode} scheduling: {modes[mode]}")


def _check_role(where: str, role: Role, protocol: str) -> None:
    hands_over = registry.hands_over(protocol)
    if not role.hands_over and hands_over:
        raise ConfigError(
            f"{where}: an engine of the role {role} hands no KV over, so its protocol cannot be "
            f"{protocol!r}; leave it out, or choose the role prefill, decode or both"
        )
    if role.hands_over and not hands_over:
        raise ConfigError(
            f"{where}: the protocol {protocol!r} hands no KV over, so there is no "
            f"{role} engine in it; choose another protocol, or the role plain"
        )


def _check_generation(where: str, settings: Settings, protocol: str, generation: str) -> None:
    try:
        registry.load(protocol, mode_for(settings, protocol), generation)
    except (LookupError, ValueError) as error:
        raise ConfigError(f"{where}: {error.args[0]}") from None
