"""Makes certificates and key pairs for a test fleet: one authority, one server certificate, one key pair per node.

For private selection every client also has an identity, which is an Ed25519 key, and the list of members, which holds
the public keys of all clients. Both are in OpenSSH's formats.
"""

import ipaddress
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from fedpohcs.core.errors import UserError, require

AUTHORITY, CERTIFICATE, SERVER_KEY, MEMBERS = "ca.pem", "server.pem", "server.key", "members"


class Keys(NamedTuple):
    """Paths of the key files of a fleet."""

    folder: Path

    @property
    def authority(self) -> Path:
        """Certificate of the authority; goes to every node."""
        return self.folder / AUTHORITY

    @property
    def certificate(self) -> Path:
        """Certificate of the server."""
        return self.folder / CERTIFICATE

    @property
    def server_key(self) -> Path:
        """Private key of the server; stays there."""
        return self.folder / SERVER_KEY

    def node_key(self, client: int) -> Path:
        """Private key of the node of a client, counted from 1; goes to that node only."""
        return self.folder / f"client-{client}"

    def node_public_key(self, client: int) -> Path:
        """Public key of the node of a client, counted from 1; is registered with the server."""
        return self.folder / f"client-{client}.pub"

    def identity(self, client: int) -> Path:
        """Private key of a client, counted from 1, for private selection; goes to its node only."""
        return self.folder / f"identity-{client}"

    @property
    def members(self) -> Path:
        """List of the clients' public keys for private selection; goes to every node, but not through the server."""
        return self.folder / MEMBERS


def make_keys(folder: Path, num_clients: int, hosts: Sequence[str], days: int = 365) -> Keys:
    """Write the key files of a fleet into a new folder that only its owner can read.

    Args:
        folder: must not exist yet, or be empty.
        num_clients: number of key pairs.
        hosts: names and addresses at which nodes reach the server.
        days: validity of the certificates.
    """
    require(num_clients > 0, "clients", num_clients, "must be at least 1")
    require(days > 0, "days", days, "must be at least 1")
    require(bool(hosts) and all(hosts), "hosts", ",".join(hosts), "must be names or addresses joined by commas")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"out (={str(folder)!r}) exists and is not empty. Keys are never overwritten: name another.")
    keys = make_certificates(folder, hosts, days)
    for client in range(1, num_clients + 1):
        _write_node_key(keys, client)
    keys.members.write_text("".join(_new_member(keys, client) for client in range(1, num_clients + 1)))
    return keys


def make_certificates(folder: Path, hosts: Sequence[str], days: int) -> Keys:
    """Write the certificate of a new authority and that of the server, with its key, into a folder of this user."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys = Keys(folder)
    _write_certificates(keys, hosts, days)
    return keys


def load_members(path: Path) -> dict[int, bytes]:
    """Read the Ed25519 public keys of all members, by client, counted from 0."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    members: dict[int, bytes] = {}
    for number, line in enumerate(_read("members", path).decode("ascii", "replace").splitlines(), start=1):
        client, _, text = line.strip().partition(" ")
        if not client or client.startswith("#"):
            continue
        try:
            key = load_ssh_public_key(text.encode())
        except ValueError:
            key = None
        rule = f"must say CLIENT-ID ssh-ed25519 KEY in line {number}, each client once"
        fits = client.isdecimal() and int(client) > 0 and int(client) - 1 not in members
        require(fits and isinstance(key, Ed25519PublicKey), "members", str(path), rule)
        members[int(client) - 1] = key.public_bytes_raw()  # pyright: ignore[reportOptionalMemberAccess, reportAttributeAccessIssue]
    return members


def load_identity(path: Path, client: int, members: Mapping[int, bytes]) -> Any:
    """Read the private key of a client, counted from 0; its public key must be the one in the list of members."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(_read("identity", path), password=None)
    except (ValueError, TypeError):
        key = None
    rule = "must be an Ed25519 key in OpenSSH's format, without a password"
    if not isinstance(key, Ed25519PrivateKey):
        raise UserError(f"identity (={str(path)!r}) {rule}.")
    known = members.get(client) == key.public_key().public_bytes_raw()
    require(known, "identity", str(path), f"is not the key of client {client + 1} in the list of members")
    return key


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{name} (={str(path)!r}) cannot be read: {error.strerror}.") from error


def _write_certificates(keys: Keys, hosts: Sequence[str], days: int) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    # The authority's private key is not stored, so that nobody can sign another certificate with it.
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


def _new_member(keys: Keys, client: int) -> str:
    """Write a new identity and return its line for the list of members."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    _write_secret(keys.identity(client), key.private_bytes(*form))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"{client} {public.decode()}\n"


def _write_secret(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
