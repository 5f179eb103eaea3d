"""`kvstore role` and `kvstore token` against a real cluster, which wants no token itself."""

from __future__ import annotations

import json

import pytest

from client_sdk import Client, IdReused, InvalidRequest, new_id
from client_sdk import rights as requests
from client_sdk.testing import MemoryStore
from kvstore.api import rights
from tests.workloads.test_cli import Shell, directory, error_of, shell

__all__ = ["directory", "shell"]


def test_a_role_is_of_prefixes_keys_and_ranges(shell: Shell) -> None:
    asked = ("--read", "a/", "--read-key", "k", "--write-key", "w", "--read-range", "m,n", "--write-range", "x,")
    assert shell.data("role", "put", "some", *asked).status == 0
    told = json.loads(shell.data("role", "list", "-o", "json").out)["some"]
    assert [(one["access"], one["first"], one["end"]) for one in told] == [
        ("read", "a/", "a0"), ("read", "k", "k\0"), ("read", "m", "n"), ("write", "w", "w\0"), ("write", "x", ""),
    ]  # fmt: skip
    for wrong in ("mn", ",", "a,b,c"):
        assert "--read-range: START,END" in error_of(shell.data("role", "put", "some", "--read-range", wrong))
    assert shell.data("role", "put", "some", "--read", "\udcff", "--write-key", "\udcff").status == 0
    assert shell.data("role", "delete", "some").status == 0
    assert "there is no role 'some'" in error_of(shell.data("role", "delete", "some"))


def test_a_token_is_taken_back_by_its_id_or_by_itself_and_what_is_unknown_is_said_so(shell: Shell) -> None:
    assert "there is no role 'nobody'" in error_of(shell.data("token", "create", "ann", "--role", "nobody"))
    for by_id in (True, False):
        token = shell.data("token", "create", "ann").out.strip()
        given = rights.id_of(token) if by_id else token
        assert shell.data("token", "revoke", given).out == f"token {rights.id_of(token)}: not known any more\n"
        assert shell.data("token", "list").out == ""
        said = error_of(shell.data("token", "revoke", given))
        assert f"there is no token with the id {rights.id_of(token)!r}" in said


def test_a_token_of_the_replica_is_taken_back_by_itself_over_http_too() -> None:
    with MemoryStore() as memory, Client(memory) as store:
        made = store.run(requests.make_token("ann", []))
        path = f"/v1/admin/tokens/{made.token}"
        taken = requests.delete_token(made.id)
        taken.path = path
        assert store.run(taken) and not store.run(requests.list_rights()).tokens


def test_a_token_that_is_asked_for_again_is_the_same_one() -> None:
    """The answer was late, or lost: the client asks again under the same id."""
    with MemoryStore() as memory, Client(memory) as store:
        first = requests.make_token("ann", [])
        made = store.run(first)
        assert store.run(first) == made
        message_id = new_id()
        again = [requests.make_token("bob", [], token=made.token, message_id=message_id) for _ in range(2)]
        with pytest.raises(InvalidRequest):
            requests.make_token("bob", [], token="kv-x")
        other = requests.make_token("bob", [], message_id=message_id)
        assert [store.run(one).id for one in again] == [made.id] * 2
        with pytest.raises(IdReused):
            store.run(other)
        forged = made.token[:-1] + ("A" if made.token[-1] != "A" else "B")
        with pytest.raises(InvalidRequest, match="another one with its id"):
            store.run(requests.make_token("eve", [], token=forged))
