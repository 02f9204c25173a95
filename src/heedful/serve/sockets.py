"""The port a server listens on."""

from __future__ import annotations

import socket

from heedful.core.errors import HeedfulError

LOOPBACK = "127.0.0.1"


class PortTaken(HeedfulError):
    """Another program listens on this port, or it cannot be used."""


def bind_socket(port: int, host: str = LOOPBACK) -> socket.socket:
    """Return a listening socket, on loopback unless another host is given; port 0 is any that is free."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(128)
    except OSError as error:
        sock.close()
        reason = "is taken" if "in use" in str(error) else f"cannot be used ({error.strerror})"
        hint = "choose another with --port, or 0 for any that is free"
        raise PortTaken(f"port {port} {reason}", hint=hint) from None
    return sock
