"""What the SDK takes: bytes and text alike, and nothing else; a mistake is named before anything is sent."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from client_sdk import (
    ZERO,
    Add,
    Append,
    AsyncClient,
    Client,
    Compare,
    Delete,
    Get,
    InvalidRequest,
    Put,
    Range,
    Timestamp,
)
from client_sdk.keyspace import ALL_KEYS
from kvstore.api import model
from tests.client_sdk.fake import FakeCluster


async def test_text_is_its_utf8_wherever_bytes_may_stand() -> None:
    async with FakeCluster() as cluster, AsyncClient(cluster.urls, timeout=60.0) as store:
        await store.put("müsli", "größe")
        assert cluster.rows["müsli".encode()][0] == "größe".encode()
        result = await store.txn(
            [Compare("müsli", "value", "==", "größe"), Compare("new", "version", "==", ZERO)],
            [Get("müsli"), Append("müsli", "!"), Add("n", 2), Put("p", "x"), Delete("p"), Range("m", 5, after="m")],
        )
        assert result.succeeded
        assert [entry.key for entry in result.results[5].entries] == ["müsli".encode()]
        assert cluster.rows["müsli".encode()][0] == "größe!".encode()


def test_text_and_bytes_make_the_same_request() -> None:
    for text, data in (
        (Put("k", "v"), Put(b"k", b"v")),
        (Append("k", "v"), Append(b"k", b"v")),
        (Range("k", 1, "l"), Range(b"k", 1, b"l")),
        (Compare("k", "value", "<", "v"), Compare(b"k", "value", "<", b"v")),
    ):
        assert text.plain() == data.plain()


class Text(str):
    """Is text."""


WRONG: list[tuple[str, Callable[[], object]]] = [
    ("value: bytes or str, not dict", lambda: ALL_KEYS.put("k", {"a": 1})),
    ("value: bytes or str, not NoneType", lambda: ALL_KEYS.put("k", None)),
    ("key: bytes or str, not int", lambda: ALL_KEYS.get(1)),
    ("key: bytes or str, not bytearray", lambda: ALL_KEYS.delete(bytearray(b"k"))),
    ("prefix: bytes or str, not int", lambda: ALL_KEYS.page(1, page_size=10, token=None, timeout=None)),
    ("page_size: int, not str", lambda: ALL_KEYS.page("k", page_size="10", token=None, timeout=None)),
    ("if_version: Timestamp, not str", lambda: ALL_KEYS.put("k", "v", if_version="3-1")),
    ("if_absent: bool, not Timestamp", lambda: ALL_KEYS.put("k", "v", if_absent=Timestamp(1, 1))),
    ("message_id: bytes, not str", lambda: ALL_KEYS.put("k", "v", message_id="0197b3c2-7f00-7cc3-98c4-dc0c0c07398f")),
    ("timeout: int or float, not str", lambda: ALL_KEYS.get("k", timeout="3")),
    ("value: bytes or str, not dict", lambda: Put("k", {"a": 1})),
    ("value: bytes or str, not int", lambda: Append("k", 1)),
    ("delta: int, not bool", lambda: Add("k", True)),
    ("delta: int, not float", lambda: Add("k", 1.0)),
    ("limit: int, not str", lambda: Range("k", "10")),
    ("target: str, not int", lambda: Compare("k", 1, "==", "v")),
    ("operand: bytes or str or bool or Timestamp, not int", lambda: Compare("k", "value", "==", 1)),
    ("success: list or tuple, not Put", lambda: ALL_KEYS.txn(success=Put("k", "v"))),
    (
        "success[1]: Get or Put or Delete or Add or Min or Max or Append or Range or DeleteRange or NoneNewer or Txn, "
        "not str",
        lambda: ALL_KEYS.txn(success=[Get("k"), "k"]),
    ),
    (
        "compare[0]: Compare, not kvstore.api.model.Compare",
        lambda: ALL_KEYS.txn([Compare("k", "exists", "==", True).plain()]),
    ),
    ("compare[0]: Compare, not tuple", lambda: ALL_KEYS.txn([("k", "exists", "==", True)])),
    ("timeout: int or float, not str", lambda: Client("http://127.0.0.1:1", timeout="3")),
]


@pytest.mark.parametrize(("said", "do"), WRONG, ids=[said for said, _ in WRONG])
def test_a_wrong_type_is_named_where_it_is_given(said: str, do: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(said)}$"):
        do()


def test_an_interactive_transaction_names_them_too() -> None:
    with Client("http://127.0.0.1:1") as store:
        with pytest.raises(TypeError, match=r"^value: bytes or str, not dict$"), store.transaction() as t:
            t.put("k", {"a": 1})
        with pytest.raises(TypeError, match=r"^key: bytes or str, not int$"), store.transaction() as t:
            t.delete(1)


def test_what_types_cannot_say_is_refused_before_it_is_sent() -> None:
    for seconds in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="timeout: a positive number of seconds"):
            ALL_KEYS.get("k", timeout=seconds)
        with Client("http://127.0.0.1:1") as store:
            for do in (
                lambda: next(store.watch("k", timeout=seconds)),  # noqa: B023
                lambda: store.transact(lambda t: t.put("k", "v"), timeout=seconds),  # noqa: B023
                lambda: store.transaction(timeout=seconds).__enter__(),  # noqa: B023
            ):
                with pytest.raises(ValueError, match="timeout: a positive number of seconds"):
                    do()
    with pytest.raises(InvalidRequest, match=r"compare\[0\]\.target: one of value, version, create_version, exists, not 'exist'"):  # noqa: E501
        ALL_KEYS.txn([Compare("k", "exist", "==", True)])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="if_version and if_absent: give one of them"):
        ALL_KEYS.put("k", "v", if_version=Timestamp(1, 1), if_absent=True)


def test_subclasses_of_text_and_every_operation_are_taken() -> None:
    assert Put(Text("k"), Text("v")).plain() == model.Put(b"k", b"v")
