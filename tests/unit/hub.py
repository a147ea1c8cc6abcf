"""A hub on loopback that speaks the protocol huggingface_hub does, faults included.

Two addresses: the hub itself, and the store that LFS files are redirected to, which is another host
to the client, so that it must not get the token.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

LFS = (".safetensors", ".bin", ".gguf", "tokenizer.json")
CHUNK = 2**18


@dataclass
class Stored:
    """A file of a commit: its content, and the id by which the hub knows it."""

    path: Path
    lfs_id: str | None = None
    served: Path | None = None
    """What is really sent; ``path`` where None."""

    @property
    def size(self) -> int:
        return self.path.stat().st_size

    @property
    def blob_id(self) -> str:
        content = b"" if self.lfs_id else self.path.read_bytes()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Fault:
    """What the hub does instead of answering, ``times`` times, for paths that contain ``path``."""

    path: str
    times: int = 1
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    """Bytes of the body after which the connection is closed."""
    method: str = "GET"


@dataclass
class Request:
    method: str
    path: str
    host: str
    token: str | None
    range: str | None
    sent: int = 0
    """Bytes of the answer's body."""


@dataclass
class Hub:
    """The repositories, what goes wrong with them, and what was asked."""

    repos: dict[str, dict[str, dict[str, Stored]]] = field(default_factory=dict)
    """repository → commit → file"""
    refs: dict[str, dict[str, str]] = field(default_factory=dict)
    """repository → branch or tag → commit"""
    gated: set[str] = field(default_factory=set)
    token: str | None = None
    """The token that gated repositories want."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    ranges: bool = True
    """Whether the store answers ranges; it sends whole files otherwise."""
    rate: float | None = None
    """Bytes a second that each connection to the store gets."""
    url: str = ""
    store: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(
        self,
        repo: str,
        folder: Path,
        *,
        revision: str = "main",
        ids: Mapping[str, str] | None = None,
    ) -> str:
        """Put the files of ``folder`` into a new commit, ``revision`` on it; return the commit.

        Args:
            repo: owner/name.
            folder: the files.
            revision: the branch or tag that then means this commit.
            ids: LFS ids by name, for files too large to hash.
        """
        files: dict[str, Stored] = {}
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            name = path.relative_to(folder).as_posix()
            known = (ids or {}).get(name)
            is_lfs = name.endswith(LFS)
            files[name] = Stored(path, known or (_sha256(path) if is_lfs else None))
        listing = json.dumps({name: [each.blob_id, each.lfs_id] for name, each in files.items()})
        commit = hashlib.sha1(f"{repo} {listing}".encode()).hexdigest()
        self.repos.setdefault(repo, {})[commit] = files
        self.refs.setdefault(repo, {})[revision] = commit
        return commit

    def fail(self, path: str, **fault: Any) -> None:
        self.faults.append(Fault(path, **fault))

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.path in path and fault.method == method:
                    fault.times -= 1
                    return fault
        return None

    def sent(self, path: str = "") -> int:
        """Return the bytes that were sent for paths that contain ``path``."""
        return sum(each.sent for each in self.requests if path in each.path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization")
        host = self.headers.get("Host") or ""
        self.asked = Request(self.command, path, host, token, self.headers.get("Range"))
        with self.hub.lock:
            self.hub.requests.append(self.asked)
        self.fault = self.hub.fault(self.command, path)
        if self.fault is not None and self.fault.status is not None:
            self._send(self.fault.status, b"", dict(self.fault.headers))
        elif api := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/(.+))?", path):
            self._api(*api.groups())
        elif resolve := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(*resolve.groups())
        elif stored := re.fullmatch(r"/store/([^/]+/[^/]+)/([0-9a-f]{40})/(.+)", path):
            repo, commit, name = stored.groups()
            self._file(self.hub.repos[repo][commit][name], {})
        else:
            self._send(404, b"", {})

    def _commit(self, repo: str, revision: str) -> str | None:
        """Return the commit; where there is none, the answer is sent."""
        if repo not in self.hub.repos:
            self._error(401, "RepoNotFound")
            return None
        if repo in self.hub.gated and self.asked.token != f"Bearer {self.hub.token}":
            self._error(403, "GatedRepo")
            return None
        commit = self.hub.refs[repo].get(revision, revision)
        if commit not in self.hub.repos[repo]:
            self._error(404, "RevisionNotFound")
            return None
        return commit

    def _api(self, repo: str, kind: str | None, revision: str | None) -> None:
        commit = self._commit(repo, revision or "main")
        if commit is None:
            return
        files = self.hub.repos[repo][commit].items()
        if kind == "tree":
            self._json([
                {"type": "file", "path": name, "size": each.size, "oid": each.blob_id, **_lfs(each)}
                for name, each in files
            ])  # fmt: skip
        else:
            siblings = [
                {"rfilename": name, "size": each.size, "blobId": each.blob_id, **_lfs(each)}
                for name, each in files
            ]
            self._json({"id": repo, "sha": commit, "siblings": siblings, "private": False})

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        commit = self._commit(repo, revision)
        if commit is None:
            return
        stored = self.hub.repos[repo][commit].get(name)
        if stored is None:
            self._error(404, "EntryNotFound", {"X-Repo-Commit": commit})
        elif stored.lfs_id is None:
            self._file(stored, {"X-Repo-Commit": commit, "ETag": f'"{stored.blob_id}"'})
        else:
            self._send(302, b"", {
                "X-Repo-Commit": commit,
                "X-Linked-Etag": f'"{stored.lfs_id}"',
                "X-Linked-Size": str(stored.size),
                "Location": f"{self.hub.store}/store/{repo}/{commit}/{name}",
            })  # fmt: skip

    def _file(self, stored: Stored, headers: dict[str, str]) -> None:
        first, last, status = 0, stored.size - 1, 200
        asked = self.asked.range if self.hub.ranges else None
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", asked or ""):
            first, last = int(part[1]), min(int(part[2] or last), last)
            if first > last:
                self._send(416, b"", {"Content-Range": f"bytes */{stored.size}"})
                return
            status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{stored.size}"
        headers = {"Accept-Ranges": "bytes", **headers, "Content-Length": str(last - first + 1)}
        self._head(status, headers)
        if self.command == "HEAD":
            return
        self._body(stored.served or stored.path, first, last + 1)

    def _body(self, path: Path, first: int, end: int) -> None:
        cut = self.fault.cut_after if self.fault else None
        stop = end if cut is None else min(end, first + cut)
        started = time.monotonic()
        with path.open("rb") as file:
            file.seek(first)
            while first < stop and (chunk := file.read(min(CHUNK, stop - first))):
                self.wfile.write(chunk)
                first += len(chunk)
                self.asked.sent += len(chunk)
                if self.hub.rate:
                    due = started + self.asked.sent / self.hub.rate
                    time.sleep(max(0.0, due - time.monotonic()))
        if stop < end:
            self.close_connection = True

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _error(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> None:
        self._send(status, b"", {"X-Error-Code": code, **(headers or {})})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self._head(status, {**headers, "Content-Length": str(len(body))})
        if self.command == "GET":
            self.wfile.write(body)
            self.asked.sent += len(body)

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """Say nothing of clients that hang up."""


def _lfs(stored: Stored) -> dict[str, Any]:
    if stored.lfs_id is None:
        return {}
    return {
        "lfs": {
            "sha256": stored.lfs_id,
            "oid": stored.lfs_id,
            "size": stored.size,
            "pointerSize": 134,
        }
    }


@contextmanager
def running() -> Iterator[Hub]:
    """Run a hub on free ports."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
    hub.url = f"http://127.0.0.1:{servers[0].server_port}"
    hub.store = f"http://localhost:{servers[1].server_port}"
    threads = [threading.Thread(target=each.serve_forever, args=(0.01,)) for each in servers]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            server.server_close()
            thread.join()
