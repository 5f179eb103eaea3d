"""Whom to ask: the order of candidates, suspicion, and which views are believed."""

from __future__ import annotations

import json
import random

import pytest

from client_sdk.routing import SUSPECT_SECONDS, ClusterView, Router, find_urls
from kvstore.api.answers import MalformedAnswer
from kvstore.api.shard_map import ShardMap

A, B, C, D = "http://a", "http://b", "http://c", "http://d"


def view(leaders: tuple[int | None, int | None] = (0, 2), cluster_id: str = "c1", version: int = 1) -> ClusterView:
    shards = [
        {"id": 0, "leader": leaders[0], "replicas": [{"id": 0, "url": A}, {"id": 1, "url": B}]},
        {"id": 1, "leader": leaders[1], "replicas": [{"id": 2, "url": C}, {"id": 3, "url": D + "/"}]},
    ]
    shard_map = ShardMap.even([0, 1], version=version).to_json()
    return ClusterView.parse(json.dumps({"cluster_id": cluster_id, "shard_map": shard_map, "shards": shards}).encode())


def router(known: ClusterView | None) -> Router:
    made = Router([B], random.Random(1))
    if known:
        made.learn(known)
    return made


def test_a_leader_comes_first_then_its_shard_then_the_rest() -> None:
    assert router(view()).candidates((1,), 0.0) == [C, D, A, B]
    assert router(view((1, 3))).candidates((1,), 0.0) == [D, C, B, A]
    assert router(view((None, None))).candidates((0,), 0.0) == [A, B, C, D]


def test_of_several_shards_the_leaders_come_first() -> None:
    orders = {tuple(router(view()).candidates((0, 1), 0.0)[:2]) for _ in range(1)}
    many = Router([B], random.Random(2))
    many.learn(view())
    orders |= {tuple(many.candidates((0, 1), 0.0)[:2]) for _ in range(20)}
    assert orders == {(A, C), (C, A)}, "the work of being asked is shared"


def test_what_anybody_can_do_is_spread_over_those_who_do_not_lead() -> None:
    made = router(view())
    orders = {tuple(made.anybody(0.0)) for _ in range(50)}
    assert {order[0] for order in orders} == {B, D} and all({*order[2:]} == {A, C} for order in orders)
    made.suspect(B, 10.0)
    assert {tuple(made.anybody(10.5)) for _ in range(50)} == {(D, A, C, B), (D, C, A, B)}
    assert router(None).anybody(0.0) == [B]


def test_without_a_view_the_seeds_are_asked() -> None:
    assert router(None).candidates((), 0.0) == [B]
    assert router(None).shards_of([b"k"]) == ()


def test_a_suspect_comes_last_for_a_while() -> None:
    made = router(view())
    made.suspect(C, 10.0)
    assert made.candidates((1,), 10.5) == [D, A, B, C]
    assert made.candidates((1,), 10.0 + SUSPECT_SECONDS) == [C, D, A, B]
    made.suspect(C, 20.0)
    made.trust(C)
    assert made.candidates((1,), 20.0)[0] == C


def test_an_older_map_is_not_taken_and_another_cluster_is_an_error() -> None:
    made = router(view(version=2))
    made.learn(view((1, 3), version=1))
    assert made.view is not None
    assert made.view.leaders == {0: A, 1: C}
    made.learn(view((1, 3), version=2))
    assert made.view.leaders == {0: B, 1: D}
    with pytest.raises(ValueError, match="of cluster c2, not of c1"):
        made.learn(view(cluster_id="c2"))


def test_nonsense_is_no_view() -> None:
    for text in (b"", b"[]", b"{}", b'{"cluster_id": "x", "shard_map": 5, "shards": []}'):
        with pytest.raises(MalformedAnswer):
            ClusterView.parse(text)


def test_urls_from_what_users_give(tmp_path) -> None:
    assert find_urls("http://x:1/, https://y:2") == ("http://x:1", "https://y:2")
    assert find_urls(["http://x:1", "http://y:2"]) == ("http://x:1", "http://y:2")
    assert find_urls("x:1, [::1]:2") == ("http://x:1", "http://[::1]:2")
    for wrong in ("http://x:port", "http://x:0", "http://x:99999", "x:99999", "http://", "ftp://x:1", "http://x:1,y"):
        with pytest.raises(ValueError, match=f"not an http:// or https:// URL: {wrong.rpartition(',')[2]}"):
            find_urls(wrong)
    for wrong in ("http://x:1/v1", "http://x:1?a=b", "http://x:1/#a", "http://x:1/v1/"):
        with pytest.raises(ValueError, match="a replica's URL ends with its host and port: http://x:1"):
            find_urls(wrong)
    for wrong in ("http://ann:secret@x:1", "https://ann@x"):
        with pytest.raises(ValueError, match="no user or password stands in a URL") as told:
            find_urls(wrong)
        assert "secret" not in str(told.value)
    with pytest.raises(ValueError, match="a list of no URLs"):
        find_urls([])
    with pytest.raises(TypeError, match="a list of URLs, not NoneType"):
        find_urls(None)  # type: ignore[arg-type]
    (tmp_path / "cluster.json").write_text('{"replicas": [{"id": 0, "host": "127.0.0.1", "http_port": 7500}]}')
    assert find_urls(tmp_path) == ("http://127.0.0.1:7500",)
    (tmp_path / "cluster.json").write_text('{"replicas": [{"host": "::", "advertise": "fd00::1", "http_port": 7500}]}')
    assert find_urls(tmp_path) == ("http://[fd00::1]:7500",)


# --- the JSON of transactions, against the server's own reading ---
