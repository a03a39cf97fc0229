"""Model names in a session: what a client may name, and which names engines know.

A session's model is that of its request (`?model=`), and an engine is chosen by it. What the client says later may
name models as well:

    {"type": "session.update", "model": "m"}                           vLLM, which answers `model_not_found` for one that
                                                                       it does not serve; older ones take any
    {"type": "session.update", "session": {"model": "m", ...}}         OpenAI; of a session that runs it is not changed
    {"session": {"audio": {"input": {"transcription": {"model": "m"}}}}}     OpenAI: a second model, that writes down

So what a key for certain models says is read before it goes on: each model that is named, wherever it is, has to be
one of the key's. Messages of all others pass unread; only where the session's model has other names (`aliases`) is one of
these replaced in `session.update`.

Source: vLLM at 055e47c, entrypoints/speech_to_text/realtime/connection.py, handle_event(); OpenAI API reference,
"Realtime", "Client events".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pdgate.gateway.apis import restricted
from pdgate.gateway.security.authenticator import KeyState
from pdgate.protocols.call import encode, parse_object, value
from pdgate.protocols.errors import BadRequest, PermissionDenied

_UPDATE: Final = b"session.update"
_NAMING: Final = (b"model", b"lora", b"previous_response", b"\\u", b"\0")
"""One of these is in a message that names a model, if it is ASCII: sound in base64 has none, as a rule."""
MOST_BYTES: Final = 4 << 20
"""Of a message that is read: that takes 10 ms."""


@dataclass(frozen=True, slots=True)
class ModelNames:
    """
    Attributes:
        key_state: Of a key for certain models; None for one that may name any.
        aliases: Other names of models, as they are now.
    """

    key_state: KeyState | None
    aliases: Callable[[], Mapping[str, str]]

    def checked(self, said: bytes) -> bytes:
        """What goes to the engine. Raises PermissionDenied, BadRequest."""
        if self.key_state is not None and _may_name(said):
            aliases = self.aliases()
            for name in restricted.named_in(said):
                if not self.key_state.may_ask(aliases.get(name, name)):
                    raise PermissionDenied("this API key may not ask that model", param="model")
        if _UPDATE in said and len(said) <= restricted.MOST_JSON_BYTES:
            return self._renamed(said)
        return said

    def _renamed(self, said: bytes) -> bytes:
        try:
            fields = parse_object(said)
            model = value(fields, "model")
        except BadRequest:
            # The engine says what is wrong with it.
            return said
        real = self.aliases().get(model) if isinstance(model, str) else None
        return said if real is None else encode({**fields, "model": real})


def names_of(
    key_state: KeyState | None, aliases: Callable[[], Mapping[str, str]]
) -> ModelNames | None:
    """Return the names to look for; None where no message needs to be read."""
    limited = key_state if key_state is not None and key_state.key.models else None
    return ModelNames(limited, aliases) if limited is not None or aliases() else None


def _may_name(said: bytes) -> bool:
    """Bytes beyond ASCII may be another encoding, in a message that is no text."""
    if not said.isascii():
        return True
    lower = said.lower()
    return any(each in lower for each in _NAMING)
