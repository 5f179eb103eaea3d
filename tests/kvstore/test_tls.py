"""A cluster with TLS: who cannot show a certificate of its authority is neither peer nor replica."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from client_sdk import Client, Unavailable
from kvstore import certificates, cluster, config, identity, serve
from kvstore.cluster import fetch
from kvstore.process import Handle
from kvstore.status import statuses
from multicast.runtime.greeting import decode_greeting, encode_greeting
from multicast.runtime.incoming import HANDSHAKES_MAX
from multicast.runtime.tls import Tls
from multicast.wire import WIRE_VERSION, Hello, Welcome
from tests.kvstore.live import wait_until
from tests.ports import free_base_port


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a running cluster of one shard of three."""
    with running(tmp_path_factory.mktemp("tls")) as directory:
        yield directory


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Path]:
    """A cluster of one shard of three."""
    made = config.new_cluster(
        shards=1, replicas=3, protocol="white_box", cluster_id=os.urandom(16).hex(), base_port=free_base_port(3),
        tls=config.CERTIFICATES,
    )  # fmt: skip
    identity.create(directory, made)
    said: list[str] = []
    certificates.make(directory, made, said.append)
    assert len(said) == 4
    started = cluster.up(directory, said.append)
    try:
        yield directory
    finally:
        cluster.stop_started(directory, started, said.append)


def read_again(directory: Path) -> None:
    """All replicas do, and find what they can use."""
    for replica in config.load(directory).replicas:
        home = config.replica_directory(directory, replica.id)
        before = (home / cluster.LOG_FILE).read_text().count("certificates are read again")
        handle = Handle.of(home)
        assert handle is not None
        handle.send(signal.SIGHUP)
        handle.close()
        log = home / cluster.LOG_FILE
        wait_until(lambda log=log, before=before: log.read_text().count("certificates are read again") > before)


def secure_connection(directory: Path, port: int, of: int | None = None, name: str = "127.0.0.1") -> ssl.SSLSocket:
    """To this port; of: with the certificate of this replica."""
    where = directory / config.CERTIFICATES
    context = ssl.create_default_context(cafile=where / certificates.AUTHORITY)
    if of is not None:
        context.load_cert_chain(*certificates.files_of(where, of))
    return context.wrap_socket(socket.create_connection(("127.0.0.1", port), timeout=60), server_hostname=name)


def test_a_client_that_trusts_the_authority_reads_and_writes_through_every_replica(secured: Path) -> None:
    known = config.load(secured)
    for replica in known.replicas:
        assert replica.url.startswith("https://127.0.0.1:")
        with Client(replica.url, timeout=60, ca=secured / known.tls / certificates.AUTHORITY) as store:
            store.put(f"k{replica.id}", "v")
    with Client(secured, timeout=60) as store:
        assert [found.key for found in store.scan("k")] == [b"k0", b"k1", b"k2"]
    wait_until(lambda: {line.state for line in statuses(secured)} == {"ready"})


def test_a_client_that_does_not_trust_it_is_told_so_before_its_time_is_over(
    secured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSTORE_CA", raising=False)
    url = config.load(secured).replicas[0].url
    with Client(url, timeout=60) as store, pytest.raises(Unavailable, match="certificate is not trusted"):
        store.get("k")
    with pytest.raises(ValueError, match=r"ca: .*absent\.pem"):
        Client(url, ca=tmp_path / "absent.pem").get("k")


def test_a_client_without_tls_gets_no_answer(secured: Path) -> None:
    port = config.load(secured).replicas[0].http_port
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        plain.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"HTTP/" not in plain.recv(1000)


def test_who_asks_for_a_status_is_told_what_it_takes(secured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = config.load(secured).replicas[0].url
    with pytest.raises(OSError, match=r"if it speaks TLS, its address begins with https://$"):
        cluster.fetch(url.replace("https://", "http://") + "/v1/cluster")
    monkeypatch.delenv("KVSTORE_CA", raising=False)
    for remembered in ("_trusted", "_opener"):
        monkeypatch.setattr(cluster, remembered, getattr(cluster, remembered).__wrapped__)
    with pytest.raises(OSError, match=r"its certificate is not trusted: .*; its authority: KVSTORE_CA, or --ca FILE"):
        cluster.fetch(f"{url}/v1/cluster")


def test_who_has_no_certificate_is_no_peer(secured: Path) -> None:
    known = config.load(secured)
    name = certificates.process_name(0, known.cluster)
    # In TLS 1.3 a client learns after its handshake that it had to show a certificate (RFC 8446, Section 4.4.2.4).
    with secure_connection(secured, known.replicas[0].peer_port, name=name) as stranger, pytest.raises(OSError):
        stranger.sendall(b"x")
        if not stranger.recv(1000):
            raise ConnectionResetError


def closed(held: list[socket.socket]) -> int:
    """How many of these the other end has closed."""
    ended = 0
    for one in held:
        one.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            with contextlib.suppress(ConnectionError):
                one.recv(1)
            ended += 1
    return ended


def test_who_does_not_shake_hands_is_one_of_few(secured: Path) -> None:
    """At the port for peers; and these come in beside them."""
    known, many = config.load(secured), HANDSHAKES_MAX + 20
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", known.replicas[0].peer_port)
        held = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(many)]
        wait_until(lambda: closed(held) >= many - HANDSHAKES_MAX)

        def peer_comes_in() -> bool:
            with contextlib.suppress(OSError):
                name = certificates.process_name(0, known.cluster)
                stack.enter_context(secure_connection(secured, address[1], 1, name))
                return True
            return False

        wait_until(peer_comes_in)


async def test_nor_are_those_many_at_the_port_for_clients() -> None:
    made = config.new_cluster(
        shards=1, replicas=1, protocol="skeen", cluster_id=os.urandom(16).hex(), base_port=free_base_port(1)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    factory = Mock(side_effect=asyncio.Protocol)
    server = await serve._listen(factory, made, 0, Mock(clients=context), 8)
    async with server:
        address = ("127.0.0.1", made.replicas[0].http_port)
        with contextlib.ExitStack() as stack:
            held = [stack.enter_context(socket.create_connection(address, timeout=60)) for _ in range(20)]
            async with asyncio.timeout(60):
                while closed(held) < 12:
                    await asyncio.sleep(0.01)
            assert closed(held) == 12


@pytest.mark.parametrize("claims", [1, 2])
def test_a_peer_is_who_its_certificate_says(secured: Path, claims: int) -> None:
    known = config.load(secured)
    name = certificates.process_name(0, known.cluster)
    with secure_connection(secured, known.replicas[0].peer_port, of=1, name=name) as peer:
        greeting = Hello(WIRE_VERSION, known.cluster, claims, 0, 1, 1, 1, 1, 0)
        peer.sendall(encode_greeting(greeting))
        answer = decode_greeting(peer.recv(10_000), Welcome)
    assert answer is not None
    refused = "certificate is for" in answer[0].refusal
    assert refused == (claims != 1), answer


def test_a_renewed_certificate_is_shown_without_a_restart(secured: Path) -> None:
    known = config.load(secured)
    port = known.replicas[2].http_port

    def shown() -> object:
        with secure_connection(secured, port) as connection:
            return (connection.getpeercert() or {})["serialNumber"]

    before = shown()
    assert shown() == before
    certificates.make(secured, known, lambda _: None, renew=True)
    running = Handle.of(config.replica_directory(secured, 2))
    assert running is not None
    running.send(signal.SIGHUP)
    running.close()
    wait_until(lambda: shown() != before)
    with Client(secured, timeout=60) as store:
        store.put("after", "renewal")
        page = fetch(f"{known.replicas[2].url}/metrics", 60.0)[1].decode()
    (ends,) = re.findall(r"^kvstore_certificate_expires_timestamp_seconds (\S+)$", page, re.MULTILINE)
    assert abs(float(ends) - time.time() - certificates.VALID_DAYS * 86_400) < 3600


def test_why_certificates_were_not_read_again_is_said_as_that(secured: Path) -> None:
    known, log = config.load(secured), config.replica_directory(secured, 1) / cluster.LOG_FILE
    certificate, _ = certificates.files_of(secured / known.tls, 1)
    before = certificate.read_bytes()
    certificate.write_bytes(before[:300])
    running = Handle.of(config.replica_directory(secured, 1))
    assert running is not None
    try:
        running.send(signal.SIGHUP)
        wait_until(lambda: "replica-1.pem: it has no certificate" in log.read_text())
    finally:
        certificate.write_bytes(before)
        running.close()
    (said,) = [line for line in log.read_text().splitlines() if "replica-1.pem" in line]
    assert "could not be read again, and those before stay in use" in said and '"level": "error"' in said


def test_an_authority_is_followed_by_another_while_all_run(tmp_path: Path) -> None:
    """What then has to be connected anew is, and a client that has the file goes on."""
    with running(tmp_path / "cluster") as directory, Client(directory, timeout=60) as store:
        known = config.load(directory)
        where, authority = directory / known.tls, directory / known.tls / certificates.AUTHORITY
        store.put("before", "")
        certificates.make(tmp_path, known, lambda _: None)
        new = tmp_path / known.tls
        authority.write_bytes((new / certificates.AUTHORITY).read_bytes() + authority.read_bytes())
        read_again(directory)
        for path in new.glob("replica-*"):
            (where / path.name).write_bytes(path.read_bytes())
        read_again(directory)
        authority.write_bytes((new / certificates.AUTHORITY).read_bytes())
        read_again(directory)
        handle = Handle.of(config.replica_directory(directory, 0))
        assert handle is not None
        handle.send(signal.SIGTERM)
        handle.close()
        wait_until(lambda: cluster.running(config.replica_directory(directory, 0)) is None)
        started = cluster.up(directory, lambda _: None)
        try:
            wait_until(lambda: {line.state for line in statuses(directory)} == {"ready"})
            store.put("after", "")
        finally:
            cluster.stop_started(directory, started, lambda _: None)


def test_beyond_this_machine_a_replica_needs_tls() -> None:
    made = config.new_cluster(
        shards=1, replicas=1, protocol="white_box", cluster_id="0" * 32, host="0.0.0.0", advertise="db.example",
        tls=config.CERTIFICATES,
    )  # fmt: skip
    config.check_exposure(made, made.replicas[0])
    plain = msgspec.structs.replace(made, tls="")
    with pytest.raises(config.ConfigError, match="without TLS"):
        config.check_exposure(plain, made.replicas[0])
    with pytest.raises(config.ConfigError, match=r"replicas\[0\]\.https: there are no certificates"):
        config.check(plain, "test")
    assert certificates.names_of(made, made.replicas[0])[0] == "db.example"


def test_missing_certificates_are_named_and_only_the_authority_makes_them(tmp_path: Path) -> None:
    made = config.new_cluster(
        shards=1, replicas=1, protocol="white_box", cluster_id="0" * 32, base_port=free_base_port(1),
        tls=config.CERTIFICATES,
    )  # fmt: skip
    identity.create(tmp_path, made)
    with pytest.raises(config.ConfigError, match=r"ca\.pem does not exist; `kvstore certs"):
        certificates.Certificates(tmp_path, made, made.replicas[0])
    certificates.make(tmp_path, made, lambda _: None)
    where = tmp_path / config.CERTIFICATES
    certificate, key = certificates.files_of(where, 0)
    assert key.stat().st_mode & 0o077 == 0 and (where / certificates.AUTHORITY_KEY).stat().st_mode & 0o077 == 0
    certificate.unlink()
    (where / certificates.AUTHORITY_KEY).unlink()
    with pytest.raises(config.ConfigError, match=r"ca\.key is not here"):
        certificates.make(tmp_path, made, lambda _: None)
    certificate.write_text("no certificate")
    with pytest.raises(config.ConfigError, match=r"replica-0\.pem: it has no certificate in PEM"):
        certificates.Certificates(tmp_path, made, made.replicas[0])


def a_cluster(directory: Path) -> config.ClusterConfig:
    """Of one replica, with its certificates, which does not run."""
    made = config.new_cluster(
        shards=1, replicas=1, protocol="white_box", cluster_id=os.urandom(16).hex(), base_port=free_base_port(1),
        tls=config.CERTIFICATES,
    )  # fmt: skip
    identity.create(directory, made)
    certificates.make(directory, made, lambda _: None)
    return made


def put_certificate(directory: Path, known: config.ClusterConfig, of: str) -> None:
    """Another one in the place of replica 0's."""
    where = directory / known.tls
    files = where / certificates.AUTHORITY, where / certificates.AUTHORITY_KEY
    authority = trustme.CA() if of == "stranger" else trustme.CA.from_pem(*(path.read_bytes() for path in files))
    names = certificates.names_of(known, known.replicas[0])
    names = [*names[:-1], "replica-7." + known.cluster_id] if of == "another" else names
    now = datetime.now(UTC)
    times = {"not_before": now - timedelta(2), "not_after": now - timedelta(1)} if of == "the past" else {}
    made = authority.issue_cert(*names, **times)
    certificate, key = certificates.files_of(where, 0)
    key.write_bytes(made.private_key_pem.bytes())
    certificate.write_bytes(made.cert_chain_pems[0].bytes())


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ("the past", "certificate has expired"),
        ("stranger", "unable to get local issuer"),
        ("another", "Hostname mismatch"),
    ],
)
def test_a_certificate_that_no_peer_would_accept_is_refused_where_it_lies(tmp_path: Path, of: str, why: str) -> None:
    made = a_cluster(tmp_path)
    running = certificates.Certificates(tmp_path, made, made.replicas[0])
    put_certificate(tmp_path, made, of)
    with pytest.raises(config.ConfigError, match=rf"replica-0\.pem: {why}"):
        certificates.Certificates(tmp_path, made, made.replicas[0])
    assert why in running.renew() and running.expires > time.time() + 86_400
    certificates.bring(tmp_path, tmp_path, made, made.replicas[0], lambda _: None)  # it makes another one
    assert certificates.Certificates(tmp_path, made, made.replicas[0]).renew() == ""


def test_a_replica_whose_certificate_and_key_do_not_fit_is_not_ended_to_start_it_again(tmp_path: Path) -> None:
    """As it is where `kvstore certs --renew` was killed between the two."""
    made = a_cluster(tmp_path)
    _, key = certificates.files_of(tmp_path / made.tls, 0)
    key.write_bytes(trustme.CA().private_key_pem.bytes())
    with pytest.raises(config.ConfigError, match=r"replica 0 stays as it is: .*mismatch.*`kvstore certs .* --renew`"):
        cluster.restart(tmp_path, lambda _: None, only=[0])
    certificates.make(tmp_path, made, lambda _: None, renew=True)
    assert certificates.Certificates(tmp_path, made, made.replicas[0]).renew() == ""


def test_an_authority_can_be_followed_by_another_without_a_restart(tmp_path: Path) -> None:
    made = a_cluster(tmp_path)
    running = certificates.Certificates(tmp_path, made, made.replicas[0])
    authority, key = (tmp_path / made.tls / name for name in (certificates.AUTHORITY, certificates.AUTHORITY_KEY))
    before, other = authority.read_bytes(), trustme.CA()
    authority.write_bytes(other.cert_pem.bytes())
    key.write_bytes(other.private_key_pem.bytes())
    certificates.make(tmp_path, made, lambda _: None, renew=True)
    authority.write_bytes(other.cert_pem.bytes() + before)
    assert running.renew() == "" and running.peers.unfit(0) == ""


def test_an_authority_that_was_taken_away_is_trusted_no_more(tmp_path: Path) -> None:
    made = a_cluster(tmp_path)
    where = tmp_path / made.tls
    running = certificates.Certificates(tmp_path, made, made.replicas[0])
    before = Tls(where / certificates.AUTHORITY, *certificates.files_of(where, 0), made.cluster)
    assert shakes_hands(before, running.peers)
    for path in where.iterdir():
        path.unlink()
    certificates.make(tmp_path, made, lambda _: None, renew=True)
    after = Tls(where / certificates.AUTHORITY, *certificates.files_of(where, 0), made.cluster)
    assert running.renew() == ""
    assert shakes_hands(after, running.peers) and not shakes_hands(before, running.peers)


def shakes_hands(with_: Tls, accepts: Tls) -> bool:
    """Whether who has these certificates is taken for replica 0 by who has those; he trusts himself."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    with_.dialling.check_hostname, with_.dialling.verify_mode = False, ssl.CERT_NONE
    client = with_.dialling.wrap_bio(to_client, to_server)
    server = accepts.accepting.wrap_bio(to_server, to_client, server_side=True)
    try:
        for end in (client, server) * 2:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLCertVerificationError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        (certificates.AUTHORITY, None, "No such file"),
        (certificates.AUTHORITY, b"", "no certificate in PEM"),
        (certificates.AUTHORITY, 300, "no certificate in PEM, or not all of one"),
        ("replica-0.pem", b"", "no certificate in PEM"),
        ("replica-0.pem", 300, "no certificate in PEM, or not all of one"),
        ("replica-0.key", None, "No such file"),
    ],
)
def test_the_file_that_is_of_no_use_is_named(tmp_path: Path, name: str, data: bytes | int | None, why: str) -> None:
    made = a_cluster(tmp_path)
    running = certificates.Certificates(tmp_path, made, made.replicas[0])
    path, before = tmp_path / made.tls / name, running.peers.accepting
    if isinstance(data, int):  # half written
        path.write_bytes(path.read_bytes()[:data])
    elif data is not None:
        path.write_bytes(data)
    else:
        path.unlink()
    assert running.renew().startswith(f"{path}: {why}" if why[0] == "N" else f"{path}: it has {why}")
    assert running.peers.accepting is before and shakes_hands(running.peers, running.peers)


def test_nobody_is_asked_for_the_password_of_a_key(tmp_path: Path) -> None:
    """OpenSSL asks the terminal, if there is one, and the whole replica waits."""
    made = a_cluster(tmp_path)
    running = certificates.Certificates(tmp_path, made, made.replicas[0])
    _, path = certificates.files_of(tmp_path / made.tls, 0)
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    assert "replica-0.key: the key is encrypted" in running.renew()
    with pytest.raises(config.ConfigError, match=r"replica-0\.key: the key is encrypted"):
        certificates.Certificates(tmp_path, made, made.replicas[0])


def test_a_certificate_ends_with_the_authority_that_has_signed_it(tmp_path: Path) -> None:
    made = a_cluster(tmp_path)
    running = certificates.Certificates(tmp_path, made, made.replicas[0])
    assert running.expires > time.time() + 86_400
    where, soon = tmp_path / made.tls, datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    key = serialization.load_pem_private_key((where / certificates.AUTHORITY_KEY).read_bytes(), None)
    found = x509.load_pem_x509_certificate((where / certificates.AUTHORITY).read_bytes())
    begins, whose = found.not_valid_before_utc, found.public_key()
    again = x509.CertificateBuilder(found.issuer, found.subject, whose, 7, begins, soon)
    for extension in found.extensions:
        again = again.add_extension(extension.value, extension.critical)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    renewed = again.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (where / certificates.AUTHORITY).write_bytes(renewed)
    assert running.renew() == "" and running.expires == soon.timestamp()
    (where / certificates.AUTHORITY).write_bytes(renewed + found.public_bytes(serialization.Encoding.PEM))
    assert running.renew() == "" and running.expires > soon.timestamp()


@pytest.mark.parametrize("renew", [False, True])
@pytest.mark.parametrize("left", ["ca.key", "replica-0.pem"])
def test_another_authority_is_not_made_where_the_first_is_only_missing(tmp_path: Path, left: str, renew: bool) -> None:
    made = a_cluster(tmp_path)
    where = tmp_path / made.tls
    for path in where.iterdir():
        if path.name != left:
            path.unlink()
    before = (where / left).read_bytes()
    with pytest.raises(config.ConfigError, match=rf"ca\.pem is not here, and {left} is: put it back"):
        certificates.make(tmp_path, made, lambda _: None, renew)
    assert [path.name for path in where.iterdir()] == [left] and (where / left).read_bytes() == before


@pytest.mark.parametrize("key", [None, b"no key"])
def test_a_key_that_is_not_the_authoritys_makes_no_certificates(tmp_path: Path, key: bytes | None) -> None:
    made = a_cluster(tmp_path)
    where = tmp_path / made.tls
    (where / certificates.AUTHORITY_KEY).write_bytes(trustme.CA().private_key_pem.bytes() if key is None else key)
    before = certificates.files_of(where, 0)[0].read_bytes()
    with pytest.raises(config.ConfigError, match=r"ca\.key"):
        certificates.make(tmp_path, made, lambda _: None, renew=True)
    assert certificates.files_of(where, 0)[0].read_bytes() == before


def test_an_authority_that_cannot_be_read_is_named_and_not_the_clusters(tmp_path: Path) -> None:
    a_cluster(tmp_path)
    asked = [sys.executable, "-m", "kvstore", "cluster", "status", str(tmp_path)]
    absent = {**os.environ, "KVSTORE_CA": str(tmp_path / "absent.pem")}
    done = subprocess.run(asked, env=absent, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "absent.pem: " in done.stderr and "Traceback" not in done.stderr
    assert "ca.pem" not in done.stderr


def test_why_a_replica_cannot_be_heard_is_said(secured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "READY_SECONDS", 0.0)
    elsewhere = msgspec.structs.replace(config.load(secured).replicas[0], advertise="localhost")
    problems: list[str] = []
    known = msgspec.structs.replace(config.load(secured), replicas=(elsewhere,))
    cluster.wait_ready(secured, known, [], problems, lambda _: None)
    (problem,) = problems
    assert "certificate is not valid for 'localhost'" in problem


def test_a_client_that_ends_its_side_while_its_last_answer_is_on_its_way_fails_nothing(secured: Path) -> None:
    """Without the farewell of TLS, as some programs do."""
    replica = config.load(secured).replicas[0]
    for _ in range(10):
        with secure_connection(secured, replica.http_port) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    log = (config.replica_directory(secured, 0) / cluster.LOG_FILE).read_text()
    assert "Traceback" not in log, log
