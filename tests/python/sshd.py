"""A real sshd on each host of hosts.py, with keys of the test's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hosts import Host
from waiting import wait_for

_SSHD = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
needs_sshd = pytest.mark.skipif(
    not (_SSHD and shutil.which("ssh") and shutil.which("ssh-keygen")),
    reason="sshd, ssh or ssh-keygen is missing: apt-get install openssh-server openssh-client",
)
PORT = 22


def serve(hosts: list[Host], folder: Path) -> str:
    """Starts sshd on `hosts`; the value of --launcher_args by which ssh finds them."""
    for key in ("host_key", "user_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key]
        subprocess.run(command, check=True, timeout=60)
    server = {
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "user_key.pub",
        "StrictModes": "no",  # the folder is below /tmp
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "PidFile": "none",
        "PermitUserEnvironment": "no",
    }
    client = {
        "IdentityFile": folder / "user_key",
        "UserKnownHostsFile": folder / "known_hosts",
        "StrictHostKeyChecking": "accept-new",
        "IdentitiesOnly": "yes",
        "LogLevel": "ERROR",
    }
    for name, settings in (("sshd_config", server), ("ssh_config", client)):
        (folder / name).write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    for host in hosts:
        log = folder / f"{host.name}.sshd"
        command = f"mkdir -p /run/sshd; exec {_SSHD} -D -f {folder}/sshd_config -E {log} -p {PORT}"
        with log.open("w") as out:
            host.start("sh", "-c", command, stdout=out)
        wait_for(lambda log=log: "Server listening" in log.read_text(), "sshd to listen")
    return f"-F '{folder}/ssh_config'"
