"""docs/wire/messenger.md names what is said, as it is said."""

import re
from typing import get_args

import pytest

from pdgate.transfer.messenger import context, messages, push_waiter, service
from pdgate.transfer.messenger.errors import Why
from pdgate.transfer.messenger.line import MAX_UNREAD_BYTES
from pdgate.transfer.messenger.peer import ANSWER_SECONDS, CONNECT_SECONDS
from pdgate.transfer.messenger.receiving import Patience
from pdgate.transfer.messenger.shape import PageShape
from pdgate.transfer.messenger.workers import MessengerWorker
from tests.docs.pages import DOCS, code, table

pytestmark = pytest.mark.source

PAGE = DOCS / "wire" / "messenger.md"


def test_every_message_is_there_with_all_its_fields() -> None:
    shown = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))

    for message in get_args(messages.Message):
        assert {message.__struct_config__.tag, *message.__struct_fields__} <= shown
    for part in (messages.ContextRoom, messages.Lent, MessengerWorker, PageShape):
        assert set(part.__struct_fields__) <= shown


def test_every_name_of_an_error_is_there() -> None:
    shown = {name for row in table(PAGE) for name in code(row[0])}

    assert set(Why) <= shown


def test_the_times_are_those_of_the_code() -> None:
    assert Patience() == Patience(ping=2.0, silence=10.0, stop=5.0)
    assert (CONNECT_SECONDS, ANSWER_SECONDS, push_waiter.MESSAGE_SECONDS) == (5.0, 5.0, 5.0)
    assert (service.SILENCE_SECONDS, service.READ_MARGIN_SECONDS) == (10.0, 5.0)
    assert MAX_UNREAD_BYTES == 64 << 10
    assert messages.MAX_BYTES == 32 << 20


def test_a_context_looks_as_the_page_says() -> None:
    assert context.pack(context.Context(7, b"xy")) == (
        b"PDCX" + (2).to_bytes(4, "little") + (7).to_bytes(8, "little") + b"xy"
    )
