"""Finds a TCP port for a test's server."""

import random
import socket


def free_port() -> int:
    """Returns a free port of 127.0.0.1 below 32768. The kernel gives higher ports to any process
    that asks, perhaps before the server binds this one."""
    for _ in range(100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port := random.randrange(20000, 32768)))
            except OSError:
                continue
            return port
    raise OSError("127.0.0.1 has no free port from 20000 to 32767")
