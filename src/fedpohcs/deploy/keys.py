"""Makes certificates and key pairs: of the authority and the server, of a device, or of a whole test fleet.

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
from fedpohcs.core.files import replace_file
from fedpohcs.deploy.members import read_members

AUTHORITY, AUTHORITY_KEY, CERTIFICATE, SERVER_KEY = "ca.pem", "ca.key", "server.pem", "server.key"
MEMBERS = "members"
NODE_KEY, IDENTITY, PUBLIC = "key", "identity", "public"  # of a single device
OPERATOR = "operator"

ISSUER = "fedpohcs fleet"
AUTHORITY_DAYS = 3650  # an authority that is kept signs many certificates of the server
USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


class Keys(NamedTuple):
    """Paths of the key files of a fleet."""

    folder: Path

    @property
    def authority(self) -> Path:
        """Certificate of the authority; goes to every node."""
        return self.folder / AUTHORITY

    @property
    def authority_key(self) -> Path:
        """Private key of the authority, which signs certificates of servers; stays with the operator."""
        return self.folder / AUTHORITY_KEY

    @property
    def certificate(self) -> Path:
        """Certificate of the server."""
        return self.folder / CERTIFICATE

    @property
    def server_key(self) -> Path:
        """Private key of the server; stays there."""
        return self.folder / SERVER_KEY

    def node_key(self, client: int) -> Path:
        """Private key of the node of a client; goes to that node only."""
        return self.folder / f"client-{client}"

    def node_public_key(self, client: int) -> Path:
        """Public key of the node of a client; is registered with the server."""
        return self.folder / f"client-{client}.pub"

    def identity(self, client: int) -> Path:
        """Private key of a client for private selection; goes to its node only."""
        return self.folder / f"identity-{client}"

    @property
    def operator(self) -> Path:
        """Private key of the operator, who signs plans; stays with the operator, away from the server."""
        return self.folder / OPERATOR

    @property
    def operator_public(self) -> Path:
        """Public key of the operator; goes to every node."""
        return self.operator.with_suffix(".pub")

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
    _check_certificate(hosts, days)
    _check_new(folder)
    keys = make_certificates(folder, hosts, days)
    for client in range(num_clients):
        _write_node_key(keys, client)
    keys.members.write_text("".join(_new_member(keys, client) for client in range(num_clients)))
    make_operator(keys.operator)
    return keys


def make_operator(path: Path) -> Path:
    """Write a new key of an operator, and its public key beside it, whose path is returned."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = path.with_suffix(".pub")
    if path.exists() or public.exists():
        raise UserError(f"operator (={str(path)!r}) exists. Keys are never overwritten: name another.")
    path.parent.mkdir(parents=True, exist_ok=True)
    public.write_text(f"{_write_pair(path, Ed25519PrivateKey.generate())}\n")
    return public


def ledger_of(identity: Path) -> Path:
    """The ledger that belongs to an identity: what it has answered in private selection."""
    return identity.with_name(identity.name + ".ledger")


def make_authority(folder: Path, hosts: Sequence[str], days: int) -> Keys:
    """Write a new authority with its key, and a certificate of the server with its key, into a new folder."""
    _check_certificate(hosts, days)
    _check_new(folder)
    return make_certificates(folder, hosts, days, keep_authority=True)


def make_certificates(folder: Path, hosts: Sequence[str], days: int, *, keep_authority: bool = False) -> Keys:
    """Write the certificates of a new authority and of the server into a folder of this user.

    Unless it is to be kept, the authority's private key is not stored, so that nobody can sign another certificate.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    keys, authority = Keys(folder), ec.generate_private_key(ec.SECP384R1())
    keys.authority.write_bytes(_root(authority, max(days, AUTHORITY_DAYS) if keep_authority else days))
    if keep_authority:
        form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _write_secret(keys.authority_key, authority.private_bytes(serialization.Encoding.PEM, *form))
    _write_server(keys, authority, hosts, days)
    return keys


def renew_certificate(folder: Path, hosts: Sequence[str], days: int) -> Keys:
    """Replace the certificate of the server and its key; the authority, and so every device, stays as it is."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    _check_certificate(hosts, days)
    keys = Keys(folder)
    try:
        authority = load_pem_private_key(_read("authority", keys.authority_key), password=None)
    except (ValueError, TypeError):
        authority = None
    if not isinstance(authority, ec.EllipticCurvePrivateKey):
        raise UserError(f"authority (={str(keys.authority_key)!r}) must be an EC key in PEM, without a password.")
    _write_server(keys, authority, hosts, days)
    return keys


def make_identity(folder: Path) -> Path:
    """Write the two key pairs of a device into a new folder, and return the file with the public keys."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    _check_new(folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = ((IDENTITY, Ed25519PrivateKey.generate()), (NODE_KEY, ec.generate_private_key(ec.SECP384R1())))
    lines = [_write_pair(folder / name, key) for name, key in made]
    _write_secret(ledger_of(folder / IDENTITY), b"")
    (folder / PUBLIC).write_text("".join(f"{line}\n" for line in lines))
    return folder / PUBLIC


def load_members(path: Path) -> dict[int, bytes]:
    """Read the Ed25519 public keys of all members, by client."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    found = {client: keys.identity for client, keys in read_members(path).items()}
    keys: dict[int, Any] = {client: load_ssh_public_key(text.encode()) for client, text in found.items() if text}
    return {client: key.public_bytes_raw() for client, key in keys.items()}


def load_identity(path: Path, client: int, members: Mapping[int, bytes]) -> Any:
    """Read the private key of a client; its public key must be the one in the list of members."""
    key = load_private("identity", path)
    known = members.get(client) == key.public_key().public_bytes_raw()
    require(known, "identity", str(path), f"is not the key of client {client} in the list of members")
    return key


def load_private(name: str, path: Path) -> Any:
    """Read an Ed25519 private key: of a client's identity, or of an operator."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(_read(name, path), password=None)
    except (ValueError, TypeError):
        key = None
    rule = "must be an Ed25519 key in OpenSSH's format, without a password"
    require(isinstance(key, Ed25519PrivateKey), name, str(path), rule)
    return key


def load_public(path: Path) -> bytes:
    """Read the Ed25519 public key of an operator."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(_read("plan-key", path))
    except (ValueError, TypeError):
        key = None
    rule = "must be an Ed25519 public key in OpenSSH's format"
    require(isinstance(key, Ed25519PublicKey), "plan-key", str(path), rule)
    assert isinstance(key, Ed25519PublicKey)
    return key.public_bytes_raw()


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{name} (={str(path)!r}) cannot be read: {error.strerror}.") from error


def _check_certificate(hosts: Sequence[str], days: int) -> None:
    require(days > 0, "days", days, "must be at least 1")
    require(bool(hosts) and all(hosts), "hosts", ",".join(hosts), "must be names or addresses joined by commas")


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"out (={str(folder)!r}) exists and is not empty. Keys are never overwritten: name another.")


def _named(name: str) -> Any:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: str, key: Any, authority: Any, days: int) -> Any:
    """What certificates of the authority and of the server have in common."""
    from cryptography import x509

    begin = datetime.now(UTC) - timedelta(minutes=5)
    start = x509.CertificateBuilder().subject_name(_named(subject)).issuer_name(_named(ISSUER))
    start = start.public_key(key.public_key()).serial_number(x509.random_serial_number())
    start = start.not_valid_before(begin).not_valid_after(begin + timedelta(days=days))
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    start = start.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return start.add_extension(signer, critical=False)


def _signed(builder: Any, authority: Any, **usage: bool) -> bytes:
    """The certificate in PEM, for the named uses of its key alone."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    builder = builder.add_extension(x509.KeyUsage(**(dict.fromkeys(USES, False) | usage)), critical=True)
    return builder.sign(authority, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _root(authority: Any, days: int) -> bytes:
    from cryptography import x509

    root = _builder(ISSUER, authority, authority, days)
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _signed(root, authority, key_cert_sign=True, crl_sign=True)


def _write_server(keys: Keys, authority: Any, hosts: Sequence[str], days: int) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    server = ec.generate_private_key(ec.SECP384R1())
    leaf = _builder(hosts[0], server, authority, days)
    leaf = leaf.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    replace_file(keys.server_key, server.private_bytes(*form), mode=0o600)
    replace_file(keys.certificate, _signed(leaf, authority, digital_signature=True))


def _alternative(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_node_key(keys: Keys, client: int) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    public = _write_pair(keys.node_key(client), ec.generate_private_key(ec.SECP384R1()))
    keys.node_public_key(client).write_text(f"{public}\n")


def _new_member(keys: Keys, client: int) -> str:
    """Write a new identity and return its line for the list of members."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    _write_secret(ledger_of(keys.identity(client)), b"")
    return f"{client} {_write_pair(keys.identity(client), Ed25519PrivateKey.generate())}\n"


def _write_pair(path: Path, key: Any) -> str:
    """Write a private key in OpenSSH's format and return the public key in the same."""
    from cryptography.hazmat.primitives import serialization

    form = (serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())
    _write_secret(path, key.private_bytes(*form))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return public.decode()


def _write_secret(path: Path, data: bytes) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
