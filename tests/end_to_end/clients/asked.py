"""What every client asks, and what must be true of the answers; imported by ask_*.py.

The model is random: what it says means nothing, but has the shape that was asked for.
"""

import os
from typing import Any, Final

URL: Final = os.environ.get("PDGATE_URL", "")
"""Of the gateway."""

MODEL: Final = "pdgate-tiny"
HELLO: Final = "To be, or not to be"
TOKENS: Final = 12
TIMEOUT_SECONDS: Final = 60

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer"},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}


def is_weather(found: Any) -> bool:
    """Arguments of the tool, or an answer, of SCHEMA."""
    return (
        isinstance(found, dict)
        and found.keys() == {"city", "unit", "days"}
        and isinstance(found["city"], str)
        and found["unit"] in ("celsius", "fahrenheit")
        and isinstance(found["days"], int)
    )
