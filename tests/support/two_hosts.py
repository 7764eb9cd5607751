"""Two hosts on this machine: network namespaces that are joined by a cable."""

from __future__ import annotations

import os
import subprocess

ADDRESSES = {"near": "10.9.7.1", "far": "10.9.7.2"}


class TwoHosts:
    """Two network namespaces, and the devices "cable" that join them."""

    def __init__(self) -> None:
        self.holders = {
            name: subprocess.Popen(["unshare", "--net", "sleep", "600"]) for name in ADDRESSES
        }
        own = os.stat("/proc/self/ns/net").st_ino
        for holder in self.holders.values():
            while os.stat(f"/proc/{holder.pid}/ns/net").st_ino == own:
                assert holder.poll() is None, "no network namespace"
        far = self.holders["far"].pid
        self.run("near", f"ip link add cable type veth peer name cable netns {far}")
        for name, address in ADDRESSES.items():
            self.run(name, f"ip address add {address}/24 dev cable")
            self.run(name, "ip link set lo up")
            self.run(name, "ip link set cable up gso_max_segs 1 mtu 1500")

    def by(self, host: str) -> list[str]:
        return ["nsenter", f"--net=/proc/{self.holders[host].pid}/ns/net"]

    def run(self, host: str, command: str) -> None:
        subprocess.run([*self.by(host), "sh", "-ec", command], check=True, timeout=20)

    def end(self) -> None:
        for holder in self.holders.values():
            holder.kill()
            holder.wait(20)


def may_make_namespaces() -> bool:
    """Returns whether this process may make network namespaces, and has what connects them."""
    probe = ["unshare", "--net", "sh", "-c", "command -v ip && command -v nft && command -v nsenter"]
    return subprocess.run(probe, capture_output=True, check=False, timeout=20).returncode == 0
