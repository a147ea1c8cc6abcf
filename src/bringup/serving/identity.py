"""Is the server that answers on a port ours, and what we planned?

Others serve on the same machine: an old server that still answers on its port gets measured in
place of the new one (SGLang moves its inner ports silently: "Port … is already in use, trying …").
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from pathlib import Path
from typing import Any

import psutil

from bringup.endpoint import Endpoint, NoReplyError

HOST = "127.0.0.1"
FIRST_PORT = 20000
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")

ASK_S = 20.0
"""How long a server may take to tell about itself."""

TOKEN_S = 2.0
"""How long one token may take before the server is asked how it is."""

ONE_TOKEN = {"text": "1", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}


def free_port() -> int:
    """Return a port that nobody listens on, outside the range that the kernel gives to clients.

    A client's connection can take a port of that range at any time; a server died of it.

    Raises:
        OSError: there is none.
    """
    low, high = map(int, EPHEMERAL.read_text().split())
    ports = [port for port in range(FIRST_PORT, 1 << 16) if not low <= port <= high]
    ports = ports or list(range(FIRST_PORT, 1 << 16))
    first = random.randrange(len(ports))  # servers that start at once try different ones
    for port in ports[first:] + ports[:first]:
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("", port))
            return port
    raise OSError(f"no port from {FIRST_PORT} up is free")


def members(session: int) -> list[int]:
    """Return the ids of the processes of a session (a server and what it started)."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


def listens(session: int, port: int) -> bool:
    """Tell whether a process of ``session`` listens on ``port``, and so nobody else does."""
    for pid in members(session):
        with contextlib.suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return True
    return False


def told(endpoint: Endpoint, *paths: str) -> dict[str, Any]:
    """Return what the server says at the first of ``paths`` that it knows, else nothing.

    Raises:
        NoReplyError: it doesn't answer.
    """
    for path in paths:
        reply = endpoint.get(path, timeout_s=ASK_S)
        if reply.status == 200 and isinstance(reply.json, dict):
            return reply.json
    return {}


def model_info(endpoint: Endpoint) -> dict[str, Any]:
    """Return ``/model_info``, by its older name where need be (SGLang before 0.5.4)."""
    return told(endpoint, "/model_info", "/get_model_info")


def server_info(endpoint: Endpoint) -> dict[str, Any]:
    """Return ``/server_info``, by its older name where need be."""
    return told(endpoint, "/server_info", "/get_server_info")


def mismatch(model: dict[str, Any], server: dict[str, Any], *, path: str, port: int) -> str | None:
    """Say what of a server's own account is not as planned, or None.

    Only what SGLang never settles for itself is compared, where it tells it at all; asked against
    resolved is evidence.
    """
    expected = (("/model_info", model, "model_path", path), ("/server_info", server, "port", port))
    for where, account, name, planned in expected:
        if account.get(name, planned) != planned:
            return f"{where} says {name} is {account[name]!r}, planned was {planned!r}"
    return None


def answers(endpoint: Endpoint) -> bool:
    """Tell whether the server says that it is well."""
    try:
        return endpoint.get("/health", timeout_s=ASK_S).status == 200
    except NoReplyError:
        return False


def works(endpoint: Endpoint) -> bool:
    """Tell whether a server that was ready generates a token, or says at least that it is well.

    The token comes first because ``/health`` takes a second or more: SGLang (0.5.13 to 0.5.23)
    generates one for it too, but only looks a second later whether it came.
    """
    with contextlib.suppress(NoReplyError):
        if endpoint.post("/generate", ONE_TOKEN, timeout_s=TOKEN_S).status == 200:
            return True
    return answers(endpoint)
