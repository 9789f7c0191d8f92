"""Certificates and key pairs for a test fleet: one authority, one server, one key pair a node."""

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from fedpohcs.errors import UserError, require

AUTHORITY, CERTIFICATE, SERVER_KEY = "ca.pem", "server.pem", "server.key"


class Keys(NamedTuple):
    """Where the files of a fleet are."""

    folder: Path

    @property
    def authority(self) -> Path:
        """What nodes trust: goes to every node."""
        return self.folder / AUTHORITY

    @property
    def certificate(self) -> Path:
        """What the server shows."""
        return self.folder / CERTIFICATE

    @property
    def server_key(self) -> Path:
        """Stays with the server."""
        return self.folder / SERVER_KEY

    def node_key(self, client: int) -> Path:
        """Of a client, counted from 1: goes to its node and nowhere else."""
        return self.folder / f"client-{client}"

    def node_public_key(self, client: int) -> Path:
        """Of a client, counted from 1: registered with the server."""
        return self.folder / f"client-{client}.pub"


def make_keys(folder: Path, num_clients: int, hosts: Sequence[str], days: int = 365) -> Keys:
    """Write the files of a fleet into a new folder that only its owner can read.

    Args:
        folder: must not exist yet, or be empty.
        num_clients: as many key pairs.
        hosts: names and addresses under which nodes reach the server.
        days: for which the certificates are valid.
    """
    require(num_clients > 0, "clients", num_clients, "must be at least 1")
    require(days > 0, "days", days, "must be at least 1")
    require(bool(hosts) and all(hosts), "hosts", ",".join(hosts), "must be names or addresses joined by commas")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"out (={str(folder)!r}) exists and is not empty. Keys are never overwritten: name another.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = Keys(folder)
    _write_certificates(keys, hosts, days)
    for client in range(1, num_clients + 1):
        _write_node_key(keys, client)
    return keys


def _write_certificates(keys: Keys, hosts: Sequence[str], days: int) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    # The authority's own key is not kept: nothing can be signed with it later, by nobody.
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    begin, issuer = datetime.now(UTC) - timedelta(minutes=5), named("fedpohcs test fleet")

    def builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        start = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        start = start.serial_number(x509.random_serial_number())
        start = start.not_valid_before(begin).not_valid_after(begin + timedelta(days=days))
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
        start = start.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return start.add_extension(signer, critical=False)

    usage = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    root = builder(issuer, authority).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    signing = x509.KeyUsage(digital_signature=False, key_cert_sign=True, crl_sign=True, **usage)
    root = root.add_extension(signing, critical=True).sign(authority, hashes.SHA384())
    leaf = builder(named(hosts[0]), server).add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
    leaf = leaf.add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    serving = x509.KeyUsage(digital_signature=True, key_cert_sign=False, crl_sign=False, **usage)
    leaf = leaf.add_extension(serving, critical=True).sign(authority, hashes.SHA384())
    pem = serialization.Encoding.PEM
    keys.authority.write_bytes(root.public_bytes(pem))
    keys.certificate.write_bytes(leaf.public_bytes(pem))
    private = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write_secret(keys.server_key, server.private_bytes(pem, *private))


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_node_key(keys: Keys, client: int) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    _write_secret(keys.node_key(client), key.private_bytes(*form))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    keys.node_public_key(client).write_bytes(public + b"\n")


def _write_secret(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
