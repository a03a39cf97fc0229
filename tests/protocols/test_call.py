"""A body is read without changing what is in it."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from pdgate.protocols.call import Raw, encode, parse_object, value
from pdgate.protocols.errors import BadRequest
from pdgate.protocols.fields import FEW_BYTES, MOST_COUNT, count_of
from pdgate.protocols.many_fields import LONG_BYTES, MOST_CONTAINERS, MOST_FIELDS
from tests.support.scripted import call_of, chat

ODD = (
    b'{"unknown":{"b":1,"a":null},"null":null,"small":1e-5,"one":1.0,"minus":-0,'
    b'"exact":123456789012345678901234567890,"precise":0.1000000000000000055511151231257827,'
    b'"escaped":"\\u00e9\\/","spaced":[1 , 2],"utf8":"\xc3\xa9"}'
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
objects = st.dictionaries(st.text(max_size=6), json_values, max_size=5)


def test_odd_values_leave_as_the_bytes_they_came_as() -> None:
    """Engines may tell 1 from 1.0, and a seed of thirty digits from its neighbour."""
    assert encode(parse_object(ODD)) == ODD


@given(objects, st.booleans(), st.sampled_from([None, 1]))
def test_every_value_keeps_its_bytes(
    fields: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    spelled = {name: json.dumps(found, ensure_ascii=ascii_only) for name, found in fields.items()}
    pairs = ", ".join(f"{json.dumps(name)}: {found}" for name, found in spelled.items())
    padding = "\n" * (indent or 0)

    parsed = parse_object(f"{{{padding}{pairs}{padding}}}".encode())

    assert {name: bytes(found).decode() for name, found in parsed.items()} == spelled
    assert json.loads(encode(parsed)) == fields
    assert list(parsed) == list(fields)


@given(objects)
def test_a_long_body_is_read_like_a_short_one(fields: dict[str, Any]) -> None:
    """By another decoder, which counts its fields."""
    data = encode({**fields, "\0": 1, "": "x" * FEW_BYTES})

    parsed = parse_object(data)

    assert {type(name) for name in parsed} == {str}
    assert msgspec.json.decode(encode(parsed)) == msgspec.json.decode(data)


@pytest.mark.parametrize("name", [b"a", b"\\u0000", b"NONE"])
def test_fields_of_one_name_are_counted_as_well(name: bytes) -> None:
    """Each takes its time, though only the last one is left."""
    many = b",".join([b'"%b":1' % name] * (MOST_FIELDS + 1))

    with pytest.raises(BadRequest, match="more than"):
        parse_object(b'{%b,"":"%b"}' % (many, b"x" * FEW_BYTES))


@pytest.mark.parametrize("more", [b"[],", b"{},", b"[{}],"])
def test_a_long_body_has_no_more_lists_and_objects_than_can_be_passed_over(more: bytes) -> None:
    """16 MiB of them take 55 ms with Python 3.13."""
    each = more.count(b"[") + more.count(b"{")
    rest = b'"text":"%b"' % (b"x" * LONG_BYTES)

    with pytest.raises(BadRequest, match=r"more than \d+ lists and objects"):
        parse_object(b'{"a":[%b0],%b}' % (more * (MOST_CONTAINERS // each), rest))
    assert parse_object(b'{"a":[%b0],%b}' % (more * (MOST_CONTAINERS // each - 2), rest))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"a": NaN}', b"NaN"),
        (b'{"a": [-Infinity]}', b"[-Infinity]"),
        (b'\xef\xbb\xbf{"a": 1}', b"1"),
        ('{"a": "\u00e9"}'.encode("utf-16"), b'"\\u00e9"'),
        ('{"a": 1}'.encode("utf-32-be"), b"1"),
        (b'{"a": "\\ud800"}', b'"\\ud800"'),
        (b'{"a": "\xed\xa0\x80"}', b'"\\ud800"'),
    ],
    ids=["NaN", "Infinity", "BOM", "UTF-16", "UTF-32", "lone surrogate", "its raw bytes"],
)
def test_what_pythons_json_takes_is_taken(data: bytes, found: bytes) -> None:
    """Engines read with it, so a client may have come to rely on it."""
    assert bytes(parse_object(data)["a"]) == found


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b'"a"', "must be a JSON object"),
        (b"NaN", "must be a JSON object"),
        (b'{"a": [1', "not valid JSON"),
        (b'{"a": 1} {"b": 2}', "not valid JSON"),
        (b'{"a": 1,}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'{"\\ud800": 1}', "surrogates not allowed"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "too deep"),
        (b'{"a": NaN, "b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not valid JSON|too deep"),
        (b'{"a": ' + b"9" * 5_000 + b', "b": NaN}', "not valid JSON"),
    ],
)
def test_what_is_no_object_is_the_clients_mistake(data: bytes, complaint: str) -> None:
    with pytest.raises(BadRequest, match=complaint):
        parse_object(data)


@given(st.binary(max_size=40) | objects.map(lambda o: json.dumps(o).encode()[:-1]))
def test_no_body_breaks_the_reader(data: bytes) -> None:
    """Whatever is accepted can also be written and read again, value by value."""
    try:
        parsed = parse_object(data)
    except BadRequest:
        return
    encode(parsed)
    for name in parsed:
        value(parsed, name)


def test_a_value_too_deep_to_read_is_the_clients_mistake() -> None:
    deep = 50_000  # Python 3.11 stops at 1,000 levels, 3.13 at 10,000.
    fields = {"tools": Raw(b"[" * deep + b"]" * deep)}

    with pytest.raises(BadRequest, match="nested too deeply"):
        value(fields, "tools", most_bytes=2 * deep)


@pytest.mark.parametrize("field", [b'"\xff"', b'["a", "\xc3"]'])
def test_text_that_is_no_utf8_is_refused_before_a_field_is_read(field: bytes) -> None:
    """Engines would refuse it too; read later it would look like a bug of ours."""
    with pytest.raises(BadRequest, match="not valid JSON"):
        parse_object(b'{"model": ' + field + b"}")


@pytest.mark.parametrize(
    ("written", "read"),
    [(b'"m"', "m"), (b"null", "other"), (b"[1, 2.5]", [1, 2.5]), (b"0", 0), (b"false", False)],
)
def test_a_field_is_decoded_when_asked_for(written: bytes, read: object) -> None:
    assert value({"a": Raw(written)}, "a", "other") == read


def test_a_missing_field_is_the_default() -> None:
    assert value({}, "a", 7) == 7


def test_a_plain_value_is_given_as_it_is() -> None:
    """Forwarders put plain values beside raw ones."""
    assert value({"a": {"b": 1}}, "a") == {"b": 1}


def test_new_bodies_mix_raw_and_plain_values() -> None:
    call = call_of(b'{"model":"m","x":1.0}')

    assert encode({**call.body, "y": {"z": None}}) == b'{"model":"m","x":1.0,"y":{"z":null}}'


def test_a_retry_changes_the_attempt_only() -> None:
    call = chat()

    again = call.retried("call-1-second")

    assert (again.id, again.attempt_id) == (call.id, "call-1-second")
    assert again.body is call.body


def test_the_last_of_two_equal_names_counts() -> None:
    """As in Python's json, with which engines read."""
    assert msgspec.json.decode(encode(parse_object(b'{"a": 1, "a": 2}'))) == {"a": 2}


LAX = TypeAdapter(int)
"""As engines read a count: their models of requests are pydantic's, and not strict."""


@pytest.mark.parametrize(
    "said",
    [
        True, False, 0, 7, 10**30, 0.0, -0.0, 7.0, "7", " 7 ", "+7", "7.0", "07", "1_000.00",
        "0", "9" * 18, "9" * 19, "9" * 4000, "0" * 30 + "7",
    ],
)  # fmt: skip
def test_a_count_is_read_as_engines_read_it(said: object) -> None:
    assert count_of(said) == min(LAX.validate_python(said), MOST_COUNT)


@pytest.mark.parametrize(
    "said",
    [
        None, "", " ", "+", "seven", "1e3", "٣", "7.", ".0", "7.5", "_7", "7_", "7__0", "7_.0",
        "7.0_0", "++7", "+ 7", "0x7", float("inf"), float("-inf"), float("nan"), [7], {}, b"7x",
    ],
)  # fmt: skip
def test_what_is_no_count_to_them_is_none(said: object) -> None:
    with pytest.raises(ValidationError):
        LAX.validate_python(said)
    assert count_of(said) is None


@given(
    st.from_regex(r"[ \n]?[+-]?[0-9_]{0,4}(\.0*)?[ \n]?", fullmatch=True)
    | st.integers()
    | st.floats()
)
def test_whatever_they_take_is_a_count(said: object) -> None:
    """Unless it is negative; a number with a fraction is one to some."""
    try:
        count = LAX.validate_python(said)
    except ValidationError:
        assert isinstance(said, float) or count_of(said) is None
        return
    assert count_of(said) == (None if count < 0 else min(count, MOST_COUNT))
