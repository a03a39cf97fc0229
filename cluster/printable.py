"""Printable text: what engines, directories and strangers say, as logs and terminals may show it.

A line end would begin another record of a log, ESC tells a terminal what to do, and marks of direction turn a
line round. Each of them is written as its escape. Source: ECMA-48; Unicode 15, categories Cc, Cf, Zl and Zp,
which str.isprintable() knows.
"""

from typing import Any


def printable(text: str) -> str:
    """Return the text with escapes in place of what is no character to be read."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escape(one) for one in text)


def all_printable(found: Any) -> Any:
    """Return what was read of JSON with all its strings printable, names of fields as they are."""
    if isinstance(found, str):
        return printable(found)
    if isinstance(found, list):
        return [all_printable(one) for one in found]
    if isinstance(found, dict):
        return {name: all_printable(one) for name, one in found.items()}
    return found


def _escape(one: str) -> str:
    code = ord(one)
    if one == "\n":
        return "\\n"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
