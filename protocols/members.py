"""Enumerations that cost no more than the strings that they stand for.

    @plain_members
    class Role(StrEnum): ...

Until Python 3.12 the way to `Role.PREFILL` leads through a descriptor written in Python: 0.2 us, and
a call to the gateway goes it forty times. From 3.12 on `EnumType` does what is done here (cpython,
Lib/enum.py, _proto_member). What is left of it until then is the look for a `__getattr__` that
`EnumType` has: 860 instructions, so modules that every call goes through keep the members that they
need under names of their own, which take 20. To be a key of a dict, a member is hashed in Python still; those that
are strings, and equal to them, can be hashed as such.
"""

from enum import Enum
from typing import TypeVar

Kind = TypeVar("Kind", bound=Enum)


def plain_members(kind: type[Kind]) -> type[Kind]:
    for name, member in kind.__members__.items():
        # EnumType's own refuses whatever looks like another member.
        type.__setattr__(kind, name, member)
    if issubclass(kind, str):
        type.__setattr__(kind, "__hash__", str.__hash__)
    return kind
