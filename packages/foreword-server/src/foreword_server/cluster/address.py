"""Checks of a Ray cluster's address."""

import socket
from typing import NoReturn

from foreword.errors import InvalidRequest, words
from foreword_server.settings import Settings, is_loopback

LOCAL = "local"
"""Address that starts Ray on this machine."""
AUTO = "auto"
"""Address of the cluster that this machine is a node of."""
CONNECTING = 10.0
"""Seconds. Longest wait for a connection to a cluster."""
FAULTS = (OSError, RuntimeError, ValueError, SystemExit)
"""Errors by which Ray says that it cannot connect or start."""


def check_reachable(address: str) -> None:
    """Raise InvalidRequest if nothing answers: `ray.init` takes minutes to say so."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal():
        refuse(address, "it is not an address")
    try:
        socket.create_connection((host, int(port)), CONNECTING).close()
    except (OSError, OverflowError) as error:
        refuse(address, words(error))


def check_address(settings: Settings, host: str, port: int) -> None:
    """Raise InvalidRequest if the Serve that runs on a cluster has another address than
    the settings: they were checked for their own, and may have no keys.
    """
    same = host == settings.host.strip("[]") or (
        is_loopback(host) and is_loopback(settings.host)
    )
    if not same or port != settings.port:
        raise InvalidRequest(
            f"cannot serve at {settings.host}:{settings.port}: Serve runs on this "
            f"cluster already, at {host}:{port}. Give '--host {host} "
            f"--port {port}', or end it with 'serve shutdown'"
        )


def refuse(address: str, reason: str) -> NoReturn:
    """Raise InvalidRequest: a cluster cannot be joined."""
    raise InvalidRequest(
        f"cannot join the Ray cluster {address!r}: {reason}. Give HOST:PORT of its "
        "head, auto on one of its nodes, or local"
    ) from None
