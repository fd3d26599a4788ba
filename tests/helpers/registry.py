"""A small image registry (the pull half of the OCI distribution API) that serves one image, as slowly as asked."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


class Registry:
    """Serves `name` (`host:port/test/slow:1`) at `host`: a layer of `size` bytes, at `rate` bytes per second."""

    def __init__(self, host: str, size: int = 2**20, rate: float = 2**30) -> None:
        self.size, self.rate = size, rate
        self.broken_off = threading.Event()
        """A client hung up in the middle of a layer."""
        files = io.BytesIO()
        with tarfile.open(fileobj=files, mode="w") as tar:
            info = tarfile.TarInfo("noise")
            info.size = size
            tar.addfile(info, io.BytesIO(os.urandom(size)))
        plain = files.getvalue()
        layer = gzip.compress(plain, 0)
        config = {"architecture": "amd64", "os": "linux", "config": {"User": "1000"}}
        config["rootfs"] = {"type": "layers", "diff_ids": [_digest(plain)]}
        self.blobs = {_digest(blob): blob for blob in (layer, json.dumps(config).encode())}
        (layer_digest, layer), (config_digest, config_blob) = self.blobs.items()
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _entry("application/vnd.docker.container.image.v1+json", config_digest, config_blob),
            "layers": [_entry("application/vnd.docker.image.rootfs.diff.tar.gzip", layer_digest, layer)],
        }
        self.manifest = json.dumps(manifest).encode()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None: ...

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                parts = self.path.strip("/").split("/")
                if self.path == "/v2/":
                    self.answer(b"{}", "application/json")
                elif parts[1:3] != ["test", "slow"]:
                    self.answer(b'{"errors": [{"code": "NAME_UNKNOWN"}]}', "application/json", 404)
                elif parts[3] == "manifests":
                    self.answer(registry.manifest, MANIFEST)
                elif parts[4] in registry.blobs:
                    self.answer(registry.blobs[parts[4]], "application/octet-stream")

            def answer(self, body: bytes, kind: str, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Docker-Content-Digest", _digest(body))
                self.end_headers()
                if self.command == "HEAD":
                    return
                step = max(int(registry.rate / 20), 1)
                try:
                    for start in range(0, len(body), step):
                        self.wfile.write(body[start : start + step])
                        time.sleep(min(step, len(body)) / registry.rate)
                except OSError:
                    registry.broken_off.set()
                    self.close_connection = True

        self._server = ThreadingHTTPServer((host, 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.name = f"{host}:{self._server.server_port}/test/slow:1"

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _entry(kind: str, digest: str, blob: bytes) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest, "size": len(blob)}
