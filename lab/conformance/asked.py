"""Request for a run: what is to be checked, and whether it can be."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from urllib.parse import urlsplit

from pdgate.cluster.queue import settings
from pdgate.forwarders import registry
from pdgate.forwarders.base import Forwarder, Mode, Plain
from pdgate.protocols import plugins

QUEUED = "decode-first"
"""Its engines share a prefill queue."""


class BadWish(Exception):
    """A sentence for the operator; nothing was started."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """
    Attributes:
        protocol: The forwarder, as `pdgate protocols` lists it.
        mode: batch or staged; None for what the gateway prefers, which is batch if it can be.
        generation: For protocols that have several.
        engine_protocol: What the reference engines are to speak; empty for `protocol`.
        prefills, decodes: URLs of engines, or entries as for `pdgate serve --instance`; without
            any, reference engines are started, and ended afterwards.
        gateway: URL of a gateway that is already in front of them; empty for one of the kit's own.
        alone: URL of an engine that is not part of a pair, of the same model, to compare with;
            empty for one of the kit's own or, with engines of yours, the first decode engine.
        model: As the gateway calls it; empty for the first that it has.
        queue: With reference engines that speak decode-first, redis://host:port/0; empty for a
            Redis of the kit's own.
        checks: Their ids; none for all.
        salt: Of the prompts: two runs with the same one ask the same; empty for one that is drawn.
    """

    protocol: str
    mode: str | None = None
    generation: str = ""
    engine_protocol: str = ""
    prefills: Sequence[str] = ()
    decodes: Sequence[str] = ()
    gateway: str = ""
    alone: str = ""
    model: str = ""
    queue: str = ""
    checks: Sequence[str] = ()
    salt: str = ""

    @property
    def spoken(self) -> str:
        """The protocol of the reference engines."""
        return self.engine_protocol or self.protocol

    @property
    def starts_engines(self) -> bool:
        return not self.decodes

    def forwarder(self) -> Forwarder:
        """Raises BadWish."""
        try:
            modes = registry.modes(self.protocol, self.generation)
            chosen = Mode(self.mode) if self.mode else _first(modes)
            return registry.load(self.protocol, chosen, self.generation)
        except (LookupError, TypeError, ValueError) as error:
            known = plugins.names(plugins.FORWARDERS)
            near = get_close_matches(self.protocol, known, 1)
            hint = f"; did you mean {near[0]}?" if near and self.protocol not in known else ""
            # Not str(): a KeyError would put its sentence into quotes.
            raise BadWish(f"--pdd-protocol {self.protocol}: {error.args[0]}{hint}") from None

    def check(self, known_checks: Sequence[str]) -> None:
        """Raises BadWish."""
        forwarder = self.forwarder()
        generations = registry.generations(self.protocol)
        if self.generation and self.generation not in generations:
            hint = f"there are {', '.join(generations)}" if generations else "it has none to name"
            raise BadWish(f"--generation {self.generation}: {self.protocol}: {hint}")
        for id in self.checks:
            if id not in known_checks:
                near = get_close_matches(id, known_checks, 1)
                hint = (
                    f"did you mean {near[0]}?" if near else f"there are {', '.join(known_checks)}"
                )
                raise BadWish(f"--check {id}: there is no such check; {hint}")
        urls = (self.gateway, self.alone, *map(url_of, (*self.prefills, *self.decodes)))
        for url in filter(None, urls):
            _check_url(url)
        if self.prefills and not self.decodes:
            raise BadWish("--prefill without --decode: name engines of both sides, or none")
        if self.gateway and not self.decodes:
            raise BadWish("--gateway: name the engines behind it, too: --prefill, --decode")
        if self.decodes and not self.prefills and not isinstance(forwarder, Plain):
            raise BadWish("--decode without --prefill: name engines of both sides, or none")
        if self.queue:
            try:
                settings.read(self.queue)
            except ValueError as error:
                raise BadWish(f"--queue: {error}") from None


def url_of(entry: str) -> str:
    """URL of an engine that was named by it, or as for `pdgate serve --instance`."""
    if "url=" not in entry:
        return entry.rstrip("/")
    words = dict(word.partition("=")[::2] for word in entry.split(","))
    return words.get("url", "").rstrip("/")


def flag_of(role: str, entry: str) -> str:
    """Flag as `pdgate serve --instance` takes it."""
    named = entry if "url=" in entry else f"url={entry.rstrip('/')}"
    return named if "role=" in named else f"role={role},{named}"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        fine = False
    if not fine:
        raise BadWish(f"{url!r} is no URL; it is of the form http://host:port")


def preferred(protocol: str, generation: str) -> Mode:
    """What the gateway takes by default. Raises LookupError, TypeError."""
    return _first(registry.modes(protocol, generation))


def _first(modes: dict[Mode, str]) -> Mode:
    return next((mode for mode in Mode if not modes[mode]), Mode.BATCH)
