"""Codecs write what they can read again, of any type that msgspec reads, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import msgspec
import pytest

from client_sdk import Compare, InvalidRequest, Put, codecs
from client_sdk.keyspace import ALL_KEYS


class Point(TypedDict):
    x: int


@dataclass
class Place:
    name: str


class Positive(msgspec.Struct):
    number: Annotated[int, msgspec.Meta(gt=0)]


KINDS: list[tuple[Any, list[Any], list[Any]]] = [
    (int | None, [1, None], ["1", True]),
    (Any, [1, None, {"a": [1.5]}], [object()]),
    (Point, [{"x": 1}], [{"x": "1"}, {}]),
    (Annotated[int, msgspec.Meta(ge=1)], [1], [0]),
    (dict[str, int], [{}, {"a": 1}], [{"a": "x"}, [1], {"a": None}]),
    (list[int], [[1]], [["1"], {"a": 1}]),
    (float, [1.5], ["x", 10**400]),
    (Place, [Place("here")], [{"name": "here"}, Place(1)]),  # type: ignore[arg-type]
    (Positive, [Positive(1)], [Positive(0), {"number": 1}]),
]


@pytest.mark.parametrize("make", [codecs.json, codecs.msgpack])
@pytest.mark.parametrize(("kind", "good", "bad"), KINDS, ids=[str(kind) for kind, _, _ in KINDS])
def test_what_is_written_can_be_read(make: Any, kind: Any, good: list[Any], bad: list[Any]) -> None:
    codec = make(kind)
    for value in good:
        assert codec.decode(codec.encode(value)) == value
    for value in bad:
        with pytest.raises(TypeError):
            codec.encode(value)


@pytest.mark.parametrize("kind", [Any, float | None, dict[str, float | None]], ids=str)
def test_what_json_has_no_number_for_does_not_become_null(kind: Any) -> None:
    codec = codecs.json(kind)
    for bad in (float("nan"), float("inf"), -float("inf")):
        with pytest.raises(TypeError, match=r"^value: "):
            codec.encode({"a": bad} if kind == dict[str, float | None] else bad)
    assert codecs.json(list[Any]).encode([None, b"x", msgspec.Raw(b"null")]) == b'[null,"eA==",null]'


def test_a_number_that_messagepack_has_not_is_refused_as_any_wrong_value() -> None:
    with pytest.raises(TypeError, match=r"^value: "):
        codecs.msgpack(int).encode(1 << 70)


def test_text_that_has_no_bytes_is_refused_as_any_wrong_argument() -> None:
    half = "\ud800"
    for name, do in (
        ("key", lambda: ALL_KEYS.get(half)),
        ("value", lambda: ALL_KEYS.put("k", half)),
        ("prefix", lambda: ALL_KEYS.count(half)),
        ("value", lambda: Put("k", half)),
        ("operand", lambda: Compare("k", "value", "==", half)),
        ("value", lambda: codecs.TEXT.encode(half)),
        ("value", lambda: codecs.json(str).encode(half)),
    ):
        with pytest.raises(InvalidRequest, match=f"^{name}: text that is no Unicode") as error:
            do()
        assert error.value.field == name
