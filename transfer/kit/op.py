"""Which way bytes move, seen from who asks."""

from enum import StrEnum


class Op(StrEnum):
    READ = "read"
    WRITE = "write"
