"""A server that looks like SGLang and fails on demand: for what the real one can't show."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--model-path", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--api-key")
parser.add_argument("--load-s", type=float, default=0.0)
parser.add_argument("--chatter", action="store_true", help="print while loading")
parser.add_argument("--flood-mb", type=int, default=0, help="print so much while loading")
parser.add_argument("--crash", type=int, help="end with this code while loading")
parser.add_argument("--claim", help="the model that it says it serves")
parser.add_argument("--refuse", action="store_true", help="answer generations with an error")
asked = parser.parse_args()

hung = False


def flood(megabytes: int) -> None:
    """Print that much, and at the end a line that says so."""
    block = "".join(f"[2026-06-17 20:48:01] line {number}\n" for number in range(50_000))
    blocks = (megabytes << 20) // len(block) + 1
    for _ in range(blocks):
        sys.stdout.write(block)
    print(f"{blocks * 50_000} lines of flood", flush=True)


class Handler(BaseHTTPRequestHandler):
    """Answers as SGLang does; ``/die``, ``/hang`` and ``/flood`` do what they say."""

    def do_GET(self) -> None:
        global hung
        if self.path == "/die":
            print("fatal: told to die", flush=True)
            os._exit(7)
        if self.path.startswith("/flood/"):
            flood(int(self.path.rpartition("/")[2]))
        hung = hung or self.path == "/hang"
        if hung:
            self.send_error(503)
        elif self.path == "/health" or self.path.startswith("/flood/"):
            self.reply(200, {})
        elif self.path == "/model_info":
            self.reply(200, {"model_path": asked.claim or asked.model_path})
        elif self.path == "/server_info":
            self.reply(200, {"port": asked.port})
        elif self.path == "/environment":
            self.reply(200, dict(os.environ))
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if hung:
            self.send_error(503)
        elif self.path != "/generate" or asked.refuse:
            self.reply(400, {"error": {"message": "CUDA error: no kernel image"}})
        else:
            self.reply(200, {"text": "2", "meta_info": {"completion_tokens": 1}})

    def reply(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


print(f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}")
print(f"server_args=ServerArgs(model_path={asked.model_path!r}, api_key={asked.api_key!r})")
began = time.monotonic()
while time.monotonic() - began < asked.load_s:
    if asked.chatter:
        print(f"Loading shards: {time.monotonic() - began:.1f} s", flush=True)
    time.sleep(0.05)
if asked.flood_mb:
    flood(asked.flood_mb)
if asked.crash is not None:
    print("RuntimeError: out of luck", file=sys.stderr)
    sys.exit(asked.crash)
try:
    server = ThreadingHTTPServer(("127.0.0.1", asked.port), Handler)
except OSError as error:  # SGLang 0.5.23 says so, and stays
    print(f"ERROR: error while attempting to bind on address: {error.strerror.lower()}", flush=True)
    time.sleep(600)
print("The server is fired up and ready to roll!", flush=True)
server.serve_forever()
