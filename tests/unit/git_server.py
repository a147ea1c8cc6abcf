"""A git server that speaks HTTP on loopback, as code hosts do: git's own backend behind it."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


class GitServer:
    """The repositories below a folder, by address.

    Attributes:
        url: its address; ``{url}/owner/name`` is the repository in ``folder/owner/name``.
        refuses: an HTTP status with which everything is answered; None to serve.
        served: bytes sent so far.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.refuses: int | None = None
        self.served = 0

    def answer(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """Return what ``git http-backend`` answers: CGI headers, an empty line, and the content."""
        place, _, query = path.partition("?")
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            env={
                "PATH": os.environ["PATH"],
                "GIT_CONFIG_GLOBAL": os.devnull,
                "GIT_HTTP_EXPORT_ALL": "1",
                "GIT_PROJECT_ROOT": str(self.folder),
                "GIT_PROTOCOL": headers.get("Git-Protocol", ""),
                "REQUEST_METHOD": method,
                "PATH_INFO": place,
                "QUERY_STRING": query,
                "CONTENT_TYPE": headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
            },
            capture_output=True,
            check=False,
        )
        return done.stdout


@contextlib.contextmanager
def running(folder: Path) -> Iterator[GitServer]:
    """Serve the repositories below ``folder`` until the block ends."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            if server.refuses:
                self.send_error(server.refuses)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            head, _, content = server.answer(
                self.command, self.path, body, dict(self.headers)
            ).partition(b"\r\n\r\n")
            fields = dict(line.split(": ", 1) for line in head.decode().splitlines())
            self.send_response(int(fields.pop("Status", "200").split()[0]))
            for name, value in fields.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)
            server.served += len(content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server = GitServer(folder, listening.server_port)
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
