"""Certificates of a cluster: where they lie, what replicas do with them, and an authority for development.

`tls` in `cluster.json` is a directory of PEM files, relative to that of `cluster.json`:

    ca.pem                          the authority that signs all certificates of the cluster
    replica-ID.pem, replica-ID.key  of each replica: `kvstore certs` makes them; in production your authority does

A replica's certificate is for the addresses by which clients reach it and for `multicast.runtime.tls.process_name`, by
which its peers know it. `ca.key` lies there only if `kvstore certs` made the authority, and no replica reads it.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvstore.config import ClusterConfig, ConfigError, ReplicaConfig, in_shell, write_atomically
from multicast.runtime.tls import Tls, process_name, show
from multicast.types import ProcessId

if TYPE_CHECKING:
    import trustme
    from cryptography import x509

AUTHORITY = "ca.pem"
AUTHORITY_KEY = "ca.key"
SECRET = 0o600
"""A key is readable by its owner only."""
VALID_DAYS = 825
"""Of a replica's certificate: what browsers accept at most."""


class Certificates:
    """Of one replica, for its peers and for its clients. ConfigError names the file that cannot be used.

    One that its own authority does not confirm is of no use to anybody, and is refused here, where it can be said.

    clients: for the HTTP port; None: it is served without TLS. expires: when the certificate in use ends, or the
    authority that confirms it, if that is earlier; seconds since 1970."""

    def __init__(self, directory: Path, config: ClusterConfig, replica: ReplicaConfig):
        where = directory / config.tls
        certificate, key = files_of(where, replica.id)
        for path in (where / AUTHORITY, certificate, key):
            if not path.is_file():
                raise ConfigError(f"{path} does not exist; `kvstore certs {in_shell(directory)}` makes what is missing")
        self._read = partial(_Read, where / AUTHORITY, certificate, key, config, replica)
        try:
            read = self._read()
        except _Unfit as error:
            raise ConfigError(
                f"{error}: no peer would accept it; `kvstore certs {in_shell(directory)} --renew` makes another one, "
                f"where {AUTHORITY_KEY} lies, else {AUTHORITY}'s authority does"
            ) from None
        except _Unusable as error:
            remedy = f"`kvstore certs {in_shell(directory)} --renew` makes others, where {AUTHORITY_KEY} lies"
            raise ConfigError(f"{error}; {remedy}") from None
        self.peers, self.clients, self.expires = read.peers, read.clients, read.expires

    def renew(self) -> str:
        """Read the files again; why they cannot be used, and then those before stay. Empty: they are in use, for the
        connections that are made from now on."""
        try:
            read = self._read()
        except (_Unfit, _Unusable) as error:
            return str(error)
        self.peers.follow(read.peers)
        self.clients, self.expires = read.clients, read.expires
        return ""


class _Unfit(Exception):
    """No peer would accept this certificate: the file, and why."""


class _Unusable(Exception):
    """The file, and why."""


class _Read:
    """What one replica's files are at this moment. _Unusable, _Unfit."""

    def __init__(self, authority: Path, certificate: Path, key: Path, config: ClusterConfig, replica: ReplicaConfig):
        for path in (authority, certificate, key):
            try:
                path.read_bytes()
            except OSError as error:
                raise _Unusable(f"{path}: {error.strerror}") from None
        for path in (authority, certificate):
            _certificates(path)
        try:
            self.peers = Tls(authority, certificate, key, config.cluster)
            problem = self.peers.unfit(replica.id)
            self.clients = _for_clients(certificate, key) if replica.https else None
        except (ssl.SSLError, OSError) as error:
            raise _Unusable(f"{certificate} and {key.name}: {error}") from None
        if problem:
            raise _Unfit(f"{certificate}: {problem}")
        self.expires = _end_of(_certificates(certificate), _certificates(authority))


def _for_clients(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    show(context, certificate, key)
    return context


def _certificates(path: Path) -> list[x509.Certificate]:
    """All that the file has. _Unusable: it has none, or ends in the middle of one."""
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise _Unusable(f"{path}: {error.strerror}") from None
    except ValueError:
        raise _Unusable(f"{path}: it has no certificate in PEM, or not all of one") from None


def _end_of(shown: Sequence[x509.Certificate], trusted: Sequence[x509.Certificate]) -> float:
    """When what is shown is accepted for the last time, seconds since 1970: the first one ends, or what has signed it,
    or what has signed that. Of two authorities that may have, the one that ends later counts."""
    one, others, end = shown[0], [*shown[1:], *trusted], shown[0].not_valid_after_utc
    for _ in others:
        signed_by = [other for other in others if other.subject == one.issuer]
        if not signed_by or one in trusted:
            break
        one = max(signed_by, key=lambda other: other.not_valid_after_utc)
        end = min(end, one.not_valid_after_utc)
    return end.timestamp()


def files_of(where: Path, replica_id: ProcessId) -> tuple[Path, Path]:
    """Its certificate and its key, in the directory of certificates."""
    return where / f"replica-{replica_id}.pem", where / f"replica-{replica_id}.key"


def make(
    directory: Path, config: ClusterConfig, say: Callable[[str], None], renew: bool = False,
    only: Collection[ProcessId] = (),
) -> list[Path]:
    """Make the authority, unless there is one, and what certificates are missing, of all replicas or only of these;
    with renew, those that are there, too. The certificates of replicas that were made.

    ConfigError: the cluster has no `tls`, or certificates are missing and the authority's key is not here, or the
    authority is not, and what it has signed is: nobody would trust that by another one, and its key would be lost.
    """
    import trustme

    if not config.tls:
        raise ConfigError("tls: this cluster has none; `kvstore cluster init --tls` makes one that has")
    where = directory / config.tls
    wanted = [
        replica
        for replica in config.present
        if (not only or replica.id in only) and (renew or not _are_there(files_of(where, replica.id)))
    ]
    authority_files = where / AUTHORITY, where / AUTHORITY_KEY
    if authority_files[0].is_file() and not authority_files[1].is_file() and wanted:
        certificate, key = files_of(where, wanted[0].id)
        raise ConfigError(
            f"{authority_files[1]} is not here, and only the authority can sign for replica {wanted[0].id}: "
            f"put {certificate.name} and {key.name} into {where}, for {', '.join(names_of(config, wanted[0]))}"
        )
    if authority_files[0].is_file() and wanted:
        authority = _authority(*authority_files)
    elif not authority_files[0].is_file():
        if left := [path for path in (authority_files[1], *_made_for(where, config)) if path.is_file()]:
            raise ConfigError(
                f"{authority_files[0]} is not here, and {left[0].name} is: put it back, from another machine or a"
                f" client; for another authority move what is in {where} away; nothing was made"
            )
        authority = trustme.CA(organization_name=f"kvstore cluster {config.cluster_id}, for development")
        where.mkdir(parents=True, exist_ok=True)
        write_atomically(authority_files[1], authority.private_key_pem.bytes(), SECRET)
        write_atomically(authority_files[0], authority.cert_pem.bytes())
        say(f"{authority_files[0]}: a new authority; give this file to clients, and {AUTHORITY_KEY} to nobody")
    for replica in wanted:
        until = datetime.now(UTC) + timedelta(days=VALID_DAYS)
        made = authority.issue_cert(*names_of(config, replica), not_after=until)
        certificate, key = files_of(where, replica.id)
        write_atomically(key, made.private_key_pem.bytes(), SECRET)
        write_atomically(certificate, b"".join(pem.bytes() for pem in made.cert_chain_pems))
        say(f"{certificate}: until {until:%Y-%m-%d}, for {', '.join(names_of(config, replica))}")
    if not wanted:
        say(f"{where}: every replica has a certificate")
    return [files_of(where, replica.id)[0] for replica in wanted]


def _authority(certificate: Path, key: Path) -> trustme.CA:
    """ConfigError: these are not its files."""
    import trustme
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    pems = certificate.read_bytes(), key.read_bytes()
    try:
        fits = x509.load_pem_x509_certificate(pems[0]).public_key() == load_pem_private_key(pems[1], None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{certificate} and {key.name}: no certificate and key in PEM, without a password") from None
    if not fits:
        raise ConfigError(f"{key} is not the key of {certificate.name}; nothing was made")
    return trustme.CA.from_pem(*pems)


def bring(directory: Path, to: Path, config: ClusterConfig, replica: ReplicaConfig, say: Callable[[str], None]) -> None:
    """What this replica needs lies with the cluster's directory `to`, for the addresses that it has now: it is made, if
    the authority's key is in `directory`, and copied. ConfigError says what is to be put where."""
    where, there = directory / config.tls, to / config.tls
    if not _are_for(there, config, replica):
        if not _are_for(where, config, replica):
            make(directory, config, say, renew=True, only=[replica.id])
        if not there.exists() or not there.samefile(where):
            there.mkdir(parents=True, exist_ok=True)
            certificate, key = files_of(there, replica.id)
            for path in (there / AUTHORITY, certificate):
                write_atomically(path, (where / path.name).read_bytes())
            write_atomically(key, (where / key.name).read_bytes(), SECRET)
            say(f"{there}: {AUTHORITY}, {certificate.name} and {key.name}, from {where}")
    Certificates(to, config, replica)


def _made_for(where: Path, config: ClusterConfig) -> list[Path]:
    """Where the certificates of all replicas are, if they are."""
    return [files_of(where, replica.id)[0] for replica in config.present]


def _are_there(files: Iterable[Path]) -> bool:
    return all(path.is_file() for path in files)


def _are_for(where: Path, config: ClusterConfig, replica: ReplicaConfig) -> bool:
    """Whether its files lie here, and peers and clients would accept its certificate."""
    from cryptography import x509

    certificate, key = files_of(where, replica.id)
    if not _are_there((where / AUTHORITY, certificate, key)):
        return False
    try:
        if Tls(where / AUTHORITY, certificate, key, config.cluster).unfit(replica.id):
            return False
        extensions = x509.load_pem_x509_certificate(certificate.read_bytes()).extensions
        told = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, OSError, x509.ExtensionNotFound):
        return False
    names = {*told.get_values_for_type(x509.DNSName), *map(str, told.get_values_for_type(x509.IPAddress))}
    asked = replica.address
    return not replica.https or asked in names or f"*.{asked.partition('.')[2]}" in names


def names_of(config: ClusterConfig, replica: ReplicaConfig) -> list[str]:
    """For what its certificate is."""
    return [*dict.fromkeys([replica.address, replica.host]), process_name(replica.id, config.cluster)]
