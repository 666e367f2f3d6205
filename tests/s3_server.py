"""A small S3 server in the memory of the test, with and without conditional writes."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import re
import threading
import urllib.parse
from collections.abc import Iterator


class S3Handler(http.server.BaseHTTPRequestHandler):
    """The requests that a store makes, on objects in the server's memory."""

    protocol_version = "HTTP/1.1"
    server: S3Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    @property
    def query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(urllib.parse.urlparse(self.path).query))

    @property
    def key(self) -> str:
        return urllib.parse.unquote(urllib.parse.urlparse(self.path).path.strip("/"))

    def body(self) -> bytes:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return raw
        joined = b""
        while True:
            head, _, raw = raw.partition(b"\r\n")
            size = int(head.split(b";")[0], 16)
            if size == 0:
                return joined
            joined, raw = joined + raw[:size], raw[size + 2 :]

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, code: str, more: str = "") -> None:
        self.answer(status, f"<Error><Code>{code}</Code>{more}</Error>".encode())

    def do_PUT(self) -> None:
        body = self.body()
        with self.server.lock:
            there = self.key in self.server.objects
            if there and self.server.conditional and self.headers.get("If-None-Match") == "*":
                self.refuse(412, "PreconditionFailed", self.server.condition)
                return
            self.server.objects[self.key] = body
        self.answer(200, ETag=f'"{hashlib.md5(body).hexdigest()}"')

    def do_GET(self) -> None:
        if "list-type" in self.query:
            self.answer(200, self.listing().encode(), Content_Type="application/xml")
            return
        body = self.server.objects.get(self.key)
        if body is None:
            self.refuse(404, "NoSuchKey")
            return
        when = "Thu, 01 Jan 2026 00:00:00 GMT"
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self.answer(200, body, ETag=tag, Last_Modified=when)
            return
        part = body[int(wanted[1]) : int(wanted[2] or len(body)) + 1]
        span = f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(body)}"
        self.answer(206, part, ETag=tag, Last_Modified=when, Content_Range=span)

    do_HEAD = do_GET  # noqa: N815

    def listing(self) -> str:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        rows: set[str] = set()
        for path, body in self.server.snapshot().items():
            bucket, _, key = path.partition("/")
            if bucket != self.key or not key.startswith(prefix):
                continue
            head, found, _ = key[len(prefix) :].partition(delimiter or "\0")
            if found:
                below = f"{prefix}{head}{delimiter}"
                rows.add(f"<CommonPrefixes><Prefix>{below}</Prefix></CommonPrefixes>")
            else:
                rows.add(
                    f"<Contents><Key>{key}</Key><Size>{len(body)}</Size><ETag>e</ETag>"
                    "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )
        return (
            f"<ListBucketResult><IsTruncated>false</IsTruncated><KeyCount>{len(rows)}</KeyCount>"
            f"{''.join(sorted(rows))}</ListBucketResult>"
        )

    def do_DELETE(self) -> None:
        with self.server.lock:
            self.server.objects.pop(self.key, None)
        self.answer(204)

    def do_POST(self) -> None:
        keys = re.findall(r"<Key>(.*?)</Key>", self.body().decode())
        with self.server.lock:
            for key in keys:
                self.server.objects.pop(f"{self.key}/{key}", None)
        self.answer(200, b"<DeleteResult></DeleteResult>", Content_Type="application/xml")


class S3Server(http.server.ThreadingHTTPServer):
    """Objects by `bucket/key`; `conditional`: it honours If-None-Match."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *, conditional: bool, condition: str) -> None:
        super().__init__(("127.0.0.1", 0), S3Handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.conditional = conditional
        self.condition = condition

    def snapshot(self) -> dict[str, bytes]:
        """The objects of now."""
        with self.lock:
            return dict(self.objects)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def serving(*, conditional: bool = True, condition: str = "") -> Iterator[S3Server]:
    """A server on a free port of this host, as long as the block runs.

    Args:
        conditional: It honours If-None-Match.
        condition: What it says of the header when it refuses for it.
    """
    server = S3Server(conditional=conditional, condition=condition)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
