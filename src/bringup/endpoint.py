"""Talk to one OpenAI-like server over HTTP, with nothing but the standard library.

A reply with an error status is a reply: whether it is a fact about the server is the caller's
to judge.  Only a reply that never came raises.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class NoReplyError(OSError):
    """The server could not be reached, closed the connection, or did not answer in time."""


@dataclass(frozen=True)
class Reply:
    """A server's answer: HTTP status and the whole body."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        """The body read as JSON; None where it is none."""
        try:
            return json.loads(self.text)
        except json.JSONDecodeError:
            return None


@dataclass(frozen=True)
class Endpoint:
    """A server's base address, such as ``http://127.0.0.1:8000``, and the key it wants, if any."""

    url: str
    api_key: str | None = None

    def get(self, path: str, *, timeout_s: float) -> Reply:
        """Fetch ``path``.

        Raises:
            NoReplyError: no complete answer came within ``timeout_s`` of silence.
        """
        return self._ask("GET", path, None, timeout_s)

    def post(self, path: str, body: Any = None, *, timeout_s: float) -> Reply:
        """Send ``body`` as JSON to ``path``; raises like `get`."""
        return self._ask("POST", path, body, timeout_s)

    def _ask(self, method: str, path: str, body: Any, timeout_s: float) -> Reply:
        address = urlsplit(self.url)
        connect = (
            http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        )
        connection = connect(address.hostname or "", address.port, timeout=timeout_s)
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            content = None if body is None else json.dumps(body).encode()
            connection.request(method, address.path.rstrip("/") + path, content, headers)
            response = connection.getresponse()
            return Reply(response.status, response.read().decode("utf-8", "replace"))
        except TimeoutError:
            raise NoReplyError(f"{method} {path}: no answer within {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise NoReplyError(f"{method} {path}: {type(error).__name__}: {error}") from None
        finally:
            connection.close()
