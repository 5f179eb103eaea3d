"""Flag over environment over file over default, for what a replica may decide alone; secrets are not shown."""

from __future__ import annotations

from typing import Any

import pytest

from kvstore import config
from kvstore.config import ConfigError
from kvstore.settings import HIDDEN, resolved, settings

MADE = config.new_cluster(shards=1, replicas=3, protocol="white_box", cluster_id="0" * 32)
VARIABLE = "KVSTORE_LIMITS_HISTORY_MS"


@pytest.mark.parametrize(
    ("file", "environment", "flags", "value", "origin"),
    [
        ({}, {}, [], 600_000, "default"),
        ({"limits": {"history_ms": 600_000}}, {}, [], 600_000, "file"),
        ({"limits": {"history_ms": 600_000}}, {VARIABLE: "5"}, [], 5, "environment"),
        ({"limits": {"history_ms": 600_000}}, {VARIABLE: "5"}, ["limits.history_ms=7"], 7, "flag"),
        ({"limits": {"watches_max": 1}}, {}, [], 600_000, "default"),
    ],
)
def test_the_nearest_says_what_is_so(
    file: dict[str, Any], environment: dict[str, str], flags: list[str], value: int, origin: str
) -> None:
    found = {setting.name: setting for setting in settings(MADE, file, environment, flags)}
    assert (found["limits.history_ms"].value, found["limits.history_ms"].origin) == (value, origin)
    assert resolved(MADE, environment, flags).limits.history_ms == value


def test_every_setting_is_there_and_no_secret() -> None:
    guarded = config.parse(config.json_text(MADE).replace(b'"root": ""', b'"root": "%b"' % (b"ab" * 32)), "test")
    found = {setting.name: setting.value for setting in settings(guarded, {}, {"KVSTORE_TOKEN": "kv-secret"}, [])}
    assert found["root"] == found["client.token"] == HIDDEN and "abab" not in str(found) and "secret" not in str(found)
    assert found["protocol_options.heartbeat_us"] > 0
    assert found["log.writes"] is False and found["durability"] == "fsync"


@pytest.mark.parametrize(
    ("environment", "flags", "says"),
    [
        ({"KVSTORE_LIMITS_HISTORY": "1"}, [], "KVSTORE_LIMITS_HISTORY: there is no such setting; did you mean KVSTORE"),
        ({VARIABLE: "many"}, [], "KVSTORE_LIMITS_HISTORY_MS: Expected `int`"),
        ({VARIABLE: "-1"}, [], "KVSTORE_LIMITS_HISTORY_MS: limits.history_ms: from 0 to"),
        ({}, ["log.writs=true"], "--set log.writs: there is no such setting; did you mean --set log.writes"),
        ({}, ["protocol=skeen"], "--set protocol: there is no such setting"),
        ({}, ["log.writes"], "--set log.writes: there is no such setting"),
    ],
)
def test_whoever_is_wrong_is_named(environment: dict[str, str], flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError, match=says.replace("(", r"\(")):
        resolved(MADE, environment, flags)


def test_what_fits_together_may_be_said_in_any_order() -> None:
    """Each by itself would not fit the defaults of the other."""
    lower = {"KVSTORE_LIMITS_BUFFER_BYTES_MAX": "4194304", "KVSTORE_LIMITS_COMMIT_BYTES": "1048576"}
    assert resolved(MADE, lower, []).limits.buffer_bytes_max == 4_194_304
    higher = ["limits.disk_stop_bytes=134217728", "limits.disk_full_bytes=268435456"]
    assert resolved(MADE, {}, higher).limits.disk_stop_bytes == 134_217_728
    with pytest.raises(ConfigError, match=r"^KVSTORE_LIMITS_BUFFER_BYTES_MAX, --set log.admin: limits.commit_bytes:"):
        resolved(MADE, {"KVSTORE_LIMITS_BUFFER_BYTES_MAX": "4194304"}, ["log.admin=false"])


def test_variables_of_others_are_nobodys_business() -> None:
    assert resolved(MADE, {"KVSTORE_SERVICE_HOST": "10.0.0.1", "KVSTORE_TOKEN": "x", "HOME": "/"}, []) == MADE


def test_a_replica_is_called_by_its_id_or_its_name() -> None:
    named = config.new_cluster(
        shards=2, replicas=3, protocol="white_box", cluster_id="0" * 32, host="0.0.0.0", names="kv-{shard}-{member}.svc"
    )
    assert [named.named(name).id for name in ("4", "kv-1-1", "kv-1-1.svc")] == [4] * 3
    assert {r.http_port for r in named.replicas} == {7500} and {r.host for r in named.replicas} == {"0.0.0.0"}
    for name in ("kv-1", "kv-1-3", "localhost"):
        with pytest.raises(ConfigError, match="is the address of 0 replicas; they have kv-0-0"):
            named.named(name)
    for names in ("kv-{index}", "kv-{shard.member}"):
        with pytest.raises(ConfigError, match=r"names: \{id\}, \{shard\} and \{member\} may stand in them"):
            config.new_cluster(shards=1, replicas=3, protocol="white_box", cluster_id="0" * 32, names=names)
