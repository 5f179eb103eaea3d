"""The commands for data: get, put, delete, scan, watch, txn. A part of the command `kvstore` (`workloads.cli`)."""

from __future__ import annotations

import os
import re
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from client_sdk import requests
from client_sdk.client import Client
from client_sdk.connections import CLOSED, CONNECT_TIMEOUT_SECONDS
from client_sdk.errors import KvError
from client_sdk.keyspace import ALL_KEYS
from client_sdk.routing import find_urls
from kvstore.api.answers import entry_json, result_json
from kvstore.api.codec import id_text, lease_of, operation_name, parse_transaction
from kvstore.api.events import CHANGE, PROGRESS, Event, event_json
from kvstore.api.forms import text_or_b64
from kvstore.api.model import SCAN_LIMIT_MAX, Consistency, InvalidTransaction
from kvstore.api.problem import APPLIED, UNKNOWN
from kvstore.console import (
    FAILED,
    OUTCOME_UNKNOWN,
    Output,
    OutputOption,
    Target,
    UserError,
    complain,
    json_line,
    make_app,
    print_json,
    say,
)
from multicast.types import Timestamp, is_uuid7

ABSENT = 3
"""Exit status of a get without a key: nothing has failed."""

REFUSED_SECONDS = 0.5
"""A cluster whose replicas all refuse connections for so long is taken for stopped."""
REFUSED_PAUSE_SECONDS = 0.1

OPTIONS = {
    "if_version": "--if-version", "if_absent": "--if-absent", "lease": "--lease", "message_id": "--id",
    "query.version": "--version", "consistency": "--consistency", "max_age": "--max-age",
}  # fmt: skip
"""How arguments of the SDK are called here."""

app = make_app("Read and write a cluster's data.")

Timeout = Annotated[float, typer.Option("--timeout", min=0.001, max=600, help="Seconds, retries included.")]
MessageIdOption = Annotated[
    str | None,
    typer.Option("--id", metavar="UUID", help="The write's id, see `kvstore id`: repeat it after an unknown outcome."),
]

LeaseOption = Annotated[
    str | None, typer.Option("--lease", metavar="LEASE", help="The key goes when this lease does, see `kvstore lease`.")
]
StartOption = Annotated[str | None, typer.Option("--start", help="Keys from this one on.")]
EndOption = Annotated[str | None, typer.Option("--end", help="Keys before this one.")]


VersionOption = Annotated[
    str | None, typer.Option("--version", help="As it was when that was written: what puts and JSON output print.")
]
ConsistencyOption = Annotated[
    Consistency,
    typer.Option("--consistency", help="What it may miss: nothing answered before; anything; what --max-age allows."),
]
MaxAgeOption = Annotated[float | None, typer.Option("--max-age", min=0, help="Seconds, of a stale read.")]


@app.command("get")
def get_command(
    cluster: Target,
    key: Annotated[str | None, typer.Argument(show_default=False)] = None,
    prefix: Annotated[bool, typer.Option("--prefix", hidden=True, help="As `scan` does.")] = False,
    version: VersionOption = None,
    consistency: ConsistencyOption = "linearizable",
    max_age: MaxAgeOption = None,
    timeout: Timeout = 10.0,
    raw: Annotated[bool, typer.Option("--raw", help="The value alone, byte for byte, without a line's end.")] = False,
    output: OutputOption = Output.text,
) -> int:
    """Print a key's value. Status 3 if there is no such key."""
    if key is None:
        raise UserError("Missing argument KEY")
    if prefix:
        scan_command(
            cluster, key, version=version, consistency=consistency, max_age=max_age, timeout=timeout, output=output
        )
        return 0
    name, at = os.fsencode(key), _version("--version", version)
    with open_client(cluster, timeout) as client:
        found = client.get(name, version=at, consistency=consistency, max_age=max_age)
    if output is Output.json:
        print_json(entry_json(found) if found else {**text_or_b64("key", name), "value": None})
    elif found:
        _print_bytes(found.value, b"" if raw else b"\n")
    if found is None:
        complain("no such key")
        return ABSENT
    return 0


@app.command("put")
def put_command(
    key: str,
    value: Annotated[str, typer.Argument(help="- reads standard input.")],
    cluster: Target,
    if_version: Annotated[str | None, typer.Option(help="Only over this version.")] = None,
    if_absent: Annotated[bool, typer.Option("--if-absent", help="Only if there is no such key.")] = False,
    lease: LeaseOption = None,
    message_id: MessageIdOption = None,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Write a key; prints the new version."""
    data = sys.stdin.buffer.read() if value == "-" else os.fsencode(value)
    version = _version("--if-version", if_version)
    identity = _message_id(message_id)
    with open_client(cluster, timeout) as client:
        written = client.put(
            os.fsencode(key), data, if_version=version, if_absent=if_absent,
            lease=None if lease is None else lease_id(lease), message_id=identity,
        )  # fmt: skip
    print_json({"version": str(written)}) if output is Output.json else say(str(written))


@app.command("del", hidden=True)  # as etcdctl calls it
@app.command("delete")
def delete_command(
    cluster: Target,
    key: Annotated[str | None, typer.Argument(help="The key, or with --prefix what keys begin with.")] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="All keys that begin with KEY; of '' all.")] = False,
    start: StartOption = None,
    end: EndOption = None,
    if_version: Annotated[str | None, typer.Option(help="Only this version.")] = None,
    message_id: MessageIdOption = None,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Delete a key, and print whether it was there; or a range, at one instant, and print how many keys it had."""
    version, identity = _version("--if-version", if_version), _message_id(message_id)
    of_range = prefix or start is not None or end is not None
    if (key is None) != (of_range and not prefix):
        raise UserError("give a KEY, or a range by KEY --prefix, --start, --end ('' --prefix is everything)")
    if of_range and version is not None:
        raise UserError("--if-version: a range has no one version")
    name, first, last = os.fsencode(key or ""), os.fsencode(start or ""), os.fsencode(end or "")
    with open_client(cluster, timeout) as client:
        deleted: bool | int
        if of_range:
            deleted = client.delete_range(name, start=first, end=last, message_id=identity)
        else:
            deleted = client.delete(name, if_version=version, message_id=identity)
    if output is Output.json:
        print_json({"deleted": deleted})
    elif of_range:
        say(str(deleted))
    else:
        say("deleted" if deleted else "no such key")


@app.command("range", hidden=True)
@app.command("scan")
def scan_command(
    cluster: Target,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin with this.")] = "",
    start: StartOption = None,
    end: EndOption = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last to the first.")] = False,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="No values.")] = False,
    count_only: Annotated[bool, typer.Option("--count-only", help="Print how many there are.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many keys; default: all.")] = None,
    version: VersionOption = None,
    consistency: ConsistencyOption = "linearizable",
    max_age: MaxAgeOption = None,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Print keys and values in key order, tab between them, all as they were at one point in time."""
    at = _version("--version", version)
    begins, first, last = os.fsencode(prefix), os.fsencode(start or ""), os.fsencode(end or "")
    with open_client(cluster, timeout) as client:
        if count_only and at is not None:
            raise UserError("--version: what is counted is counted now")
        if count_only:
            count = client.count(begins, start=first, end=last, consistency=consistency, max_age=max_age)
            print_json({"count": count}) if output is Output.json else say(str(count))
            return
        page_size = min(limit or SCAN_LIMIT_MAX, SCAN_LIMIT_MAX)
        entries = client.scan(
            begins, start=first, end=last, reverse=reverse, keys_only=keys_only, page_size=page_size,
            version=at, consistency=consistency, max_age=max_age,
        )  # fmt: skip
        for count, found in enumerate(entries, 1):
            if output is Output.json:
                say(json_line(entry_json(found, keys_only)))
            else:
                _print_bytes(found.key if keys_only else found.key + b"\t" + found.value)
            if count == limit:
                break


@app.command("watch")
def watch_command(
    cluster: Target,
    prefix: Annotated[str, typer.Argument(help="Only keys that begin with this.")] = "",
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Only this key.")] = None,
    start: StartOption = None,
    end: EndOption = None,
    _: Annotated[bool, typer.Option("--prefix", hidden=True, help="So it is.")] = False,
    after: Annotated[
        str | None, typer.Option("--from", metavar="VERSION", help="What follows this version; default: from now on.")
    ] = None,
    progress: Annotated[bool, typer.Option("--progress", help="Tell up to which version this is all.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many transactions.")] = None,
    timeout: Annotated[float, typer.Option(min=0.001, max=600, help="Seconds that no replica may serve.")] = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Print every change from now on, in one order, whichever shards: PUT, key and value, or DELETE and key. Ends with
    Ctrl-C."""
    begins, first, last = os.fsencode(prefix), os.fsencode(start or ""), os.fsencode(end or "")
    at, one = _version("--from", after), None if key is None else os.fsencode(key)
    with open_client(cluster, timeout) as client, suppress(KeyboardInterrupt):
        told = 0
        events = client.watch(begins, key=one, start=first, end=last, after=at, progress=progress, timeout=timeout)
        for event in events:
            _print_event(event, output)
            told += event.kind == CHANGE
            if told == limit:
                break


def _print_event(event: Event, output: Output) -> None:
    if output is Output.json:
        say(json_line(event_json(event)))
        return
    for key, value in event.changes:
        _print_bytes(b"DELETE\t" + key if value is None else b"PUT\t%b\t%b" % (key, value))
    if event.kind == PROGRESS:
        say(f"PROGRESS\t{event.version}")


@app.command("id")
def id_command(output: OutputOption = Output.text) -> None:
    """Print a new id for a write, a UUIDv7. A write that is repeated under its id within two minutes has one effect."""
    made = id_text(requests.new_id())
    print_json({"id": made}) if output is Output.json else say(made)


@app.command("txn")
def txn_command(
    transaction: Annotated[str, typer.Argument(metavar="JSON|FILE|-", help="As for POST /v1/txn.")],
    cluster: Target,
    message_id: MessageIdOption = None,
    consistency: ConsistencyOption = "linearizable",
    max_age: MaxAgeOption = None,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> None:
    """Run a transaction: compare, then success or failure. Either branch is status 0."""

    try:
        parsed = parse_transaction(_transaction_text(transaction))
    except InvalidTransaction as error:
        raise UserError(str(error)) from None
    identity = _message_id(message_id)
    with open_client(cluster, timeout) as client:
        asked = ALL_KEYS.transaction(parsed, message_id=identity, consistency=consistency, max_age=max_age)
        result = client.run(asked)
    branch = parsed.success if result.succeeded else parsed.failure
    results = [result_json(o, r, str(result.version)) for o, r in zip(branch, result.results, strict=False)]
    if output is Output.json:
        print_json({"succeeded": result.succeeded, "version": str(result.version), "results": results})
        return
    say(f"{'success' if result.succeeded else 'failure'} at {result.version}")
    for operation, one in zip(branch, results, strict=False):
        say(f"  {operation_name(operation)}: {json_line(one)}")


@app.command("outcome")
def outcome_command(
    message_id: Annotated[str, typer.Argument(metavar="UUID", help="The id of a write.")],
    cluster: Target,
    timeout: Timeout = 10.0,
    output: OutputOption = Output.text,
) -> int:
    """Print what became of the write of an id, while it is remembered. Status 3 if it is not."""
    identity = _message_id(message_id, "UUID")
    assert identity is not None
    with open_client(cluster, timeout) as client:
        found = client.outcome(identity)
    if found is None:
        complain("nothing is remembered under this id")
        return ABSENT
    if output is Output.json:
        print_json(found)
    elif found.outcome == APPLIED:
        say(f"applied, {'success' if found.succeeded else 'failure'} at {found.version}")
    else:
        say(f"not applied: {found.detail}")
    return 0


def lease_id(text: str) -> bytes:
    """Of a lease, as `lease grant` has printed it. UserError."""
    try:
        return lease_of(text)
    except InvalidTransaction as error:
        raise UserError(str(error)) from None


def _transaction_text(argument: str) -> bytes:
    if argument == "-":
        return sys.stdin.buffer.read()
    return os.fsencode(argument) if argument.lstrip().startswith("{") else Path(argument).read_bytes()


# -- small things -----------------------------------------------------------------------------------------------------


@contextmanager
def open_client(target: str, timeout: float) -> Iterator[Client]:
    """A client of the cluster that a user names; what goes wrong is a UserError."""
    try:
        urls = find_urls(target)
    except ValueError as error:
        raise UserError(str(error)) from None
    _wait_for_anyone(urls, min(timeout, REFUSED_SECONDS))
    try:
        client = Client(target, timeout=timeout)
    except ValueError as error:
        raise UserError(str(error)) from None
    try:
        with client:
            yield client
    except KvError as error:
        text = str(error)
        if error.field in OPTIONS:
            text = re.sub("|".join(OPTIONS), lambda name: OPTIONS[name[0]], text)
        elif error.status == 401:
            text = "who asks? --token-file FILE, or a token in KVSTORE_TOKEN, that this cluster knows"
        elif "http://" in text and CLOSED in text:
            text += "; if it speaks TLS, its address begins with https://"
        text = text.replace("see `ca`", "see --ca FILE, before the command")
        raise UserError(text, OUTCOME_UNKNOWN if error.outcome == UNKNOWN else FAILED) from None


def _wait_for_anyone(urls: Sequence[str], seconds: float) -> None:
    """Until somebody listens there, or it takes longer to know. UserError if all have refused, or have no address, for
    so long."""
    again = Retrying(
        stop=stop_after_delay(seconds), wait=wait_fixed(REFUSED_PAUSE_SECONDS),
        retry=retry_if_exception_type(UserError), reraise=True,
    )  # fmt: skip
    again(_look_for_anyone, urls)


def _look_for_anyone(urls: Sequence[str]) -> None:
    for url in urls:
        parts = urlsplit(url)
        try:
            address = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection(address, CONNECT_TIMEOUT_SECONDS).close()
            return
        except (ConnectionRefusedError, socket.gaierror) as error:
            why = error.strerror
        except UnicodeError:
            why = "no host has such a name"
        except OSError:
            return
    raise UserError(f"nobody listens at {', '.join(urls)}: {why}")


def _version(option: str, text: str | None) -> Timestamp | None:
    try:
        return None if text is None else Timestamp.parse(text.strip('"'))
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def _message_id(text: str | None, argument: str = "--id") -> bytes | None:
    if text is None:
        return None
    try:
        message_id = uuid.UUID(text).bytes
    except ValueError:
        message_id = b""
    if not is_uuid7(message_id):
        example = id_text(requests.new_id())
        raise UserError(f"{argument}: a UUIDv7 is needed, as `kvstore id` prints one, now {example}, not {text[:60]!r}")
    return message_id


def _print_bytes(data: bytes, end: bytes = b"\n") -> None:
    sys.stdout.buffer.write(data + end)
    sys.stdout.buffer.flush()
