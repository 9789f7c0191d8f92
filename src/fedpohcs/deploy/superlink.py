"""A SuperLink on loopback: its files, its command, and the front before it."""

import sys
from dataclasses import dataclass
from pathlib import Path

from fedpohcs.deploy.front import FrontOptions
from fedpohcs.deploy.keys import Keys, make_certificates
from fedpohcs.deploy.programs import LOOPBACK

DAYS = 3650  # the certificates of loopback are made anew at every start


@dataclass(frozen=True)
class SuperLink:
    """A SuperLink that only processes of this machine reach. `folder` holds its files."""

    folder: Path
    port: int
    secure: bool = True
    """TLS on loopback and keys of nodes. Flower checks nodes' keys only where there is TLS."""
    runtime: str = "deployment"
    database: Path | None = None
    """None: in memory."""

    @property
    def home(self) -> Path:
        """FLWR_HOME of the programs that control this SuperLink, where it is called `fleet`."""
        return self.folder / "flwr"

    @property
    def _loopback(self) -> Keys:
        return Keys(self.folder / "loopback")

    def prepare(self) -> None:
        """Make the certificates of loopback, and tell `flwr` where the SuperLink is."""
        trust = "insecure = true"
        if self.secure:
            keys = self._loopback
            for path in (keys.authority, keys.certificate, keys.server_key):
                path.unlink(missing_ok=True)
            make_certificates(keys.folder, [LOOPBACK], DAYS)
            trust = f'root-certificates = "{keys.authority.absolute()}"'
        text = f'[superlink]\ndefault = "fleet"\n\n[superlink.fleet]\naddress = "{LOOPBACK}:{self.port}"\n{trust}\n'
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        (self.home / "config.toml").write_text(text, encoding="utf-8")

    def command(self) -> list[str]:
        """The command that starts the SuperLink."""
        command = [sys.executable, "-m", "fedpohcs.deploy.superlink_process"]
        command += ["--host", LOOPBACK, "--port", str(self.port)]
        command += ["--disable-runtime-dependency-installation"]
        if self.secure:
            keys = self._loopback
            command += ["--ssl-ca-certfile", str(keys.authority), "--ssl-certfile", str(keys.certificate)]
            command += ["--ssl-keyfile", str(keys.server_key)]
        else:
            command += ["--insecure"]
        if self.runtime == "simulation":
            command += ["--simulation"]
        elif self.secure:
            command += ["--enable-supernode-auth"]
        return command + (["--database", str(self.database)] if self.database else [])

    def front(self, port: int, certificate: Path | None, key: Path | None, host: str = LOOPBACK) -> FrontOptions:
        """The front of this SuperLink. Without a certificate it speaks plain text."""
        return FrontOptions(
            port=port,
            superlink_port=self.port,
            host=host,
            certificate=None if certificate is None else str(certificate),
            key=None if key is None else str(key),
            superlink_authority=str(self._loopback.authority) if self.secure else None,
            registration=not self.secure,
        )
