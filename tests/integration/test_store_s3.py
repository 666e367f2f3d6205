"""The store over s3fs and HTTP, against a small S3 server with and without conditional writes."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from configs.data import DataConfig, SourceConfig
from configs.errors import ResourceError
from configs.experiment import Experiment
from configs.model import ModelConfig
from configs.secret import Secret
from tasks.artifacts import Artifact, ArtifactStore, OpenArtifact
from tasks.hashcache import content_identity
from tasks.lease import LeaseTiming
from tasks.stage import Context, Outcome, Stage, materialise
from tasks.storage import Location, hash_bytes

pytest.importorskip("s3fs")

QUICK = LeaseTiming(
    heartbeat_seconds=0.2, stale_seconds=10.0, poll_seconds=0.05, settle_seconds=0.5
)


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
        for path, body in self.server.objects.items():
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
        self.server.objects.pop(self.key, None)
        self.answer(204)

    def do_POST(self) -> None:
        for key in re.findall(r"<Key>(.*?)</Key>", self.body().decode()):
            self.server.objects.pop(f"{self.key}/{key}", None)
        self.answer(200, b"<DeleteResult></DeleteResult>", Content_Type="application/xml")


class S3Server(http.server.ThreadingHTTPServer):
    """Objects by `bucket/key`; `conditional`: it honours If-None-Match."""

    daemon_threads = True

    def __init__(self, *, conditional: bool, condition: str) -> None:
        super().__init__(("127.0.0.1", 0), S3Handler)
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.conditional = conditional
        self.condition = condition


@pytest.fixture(params=["conditional", "conditional without a name", "unconditional"])
def server(request: pytest.FixtureRequest) -> Iterator[S3Server]:
    named = "<Condition>If-None-Match</Condition>" if request.param == "conditional" else ""
    server = S3Server(conditional=request.param != "unconditional", condition=named)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def folder(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Location:
    monkeypatch.setenv("MODELMILL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    options = {"key": "key", "secret": "secret"}
    options["endpoint_url"] = f"http://127.0.0.1:{server.server_port}"
    for name, value in options.items():
        monkeypatch.setenv(f"STORE_{name.upper()}", value)
    secrets = {name: Secret(f"${{env:STORE_{name.upper()}}}") for name in options}
    return Location("s3://bucket/workspace", secrets)


@dataclass(frozen=True)
class Made:
    units: int


@dataclass
class Units(Stage[int, Made]):
    """Makes `spec` units; `fails` breaks it after the last one."""

    name = "units"
    version = 1
    fails: bool = False
    made: int = 0

    def identity(self, spec: int) -> dict[str, Any]:
        return {"units": spec}

    def run(
        self, context: Context, spec: int, inputs: Mapping[str, Artifact], output: OpenArtifact
    ) -> Made:
        finished = output.finished_units()
        if finished:
            output.mark_resumed()
        for unit in map(str, range(spec)):
            if unit not in finished:
                self.made += 1
                files = {f"out/{unit}.txt": output.write_bytes("u.txt", unit.encode(), unit=True)}
                output.record_unit(unit, files, {})
            output.add_files(output.finished_units()[unit].files)
        if self.fails:
            raise RuntimeError("broken")
        return Made(spec)


@pytest.fixture
def context() -> Context:
    data = DataConfig(sources=(SourceConfig(path="rows.jsonl"),))
    return Context(Experiment(name="toy", model=ModelConfig(base="folder"), data=data))


def test_location_over_s3(folder: Location, server: S3Server) -> None:
    file = folder.join("a", "b.bin")
    assert not file.exists() and file.read_if_exists() is None and folder.list() == []
    file.write_bytes(b"one")
    file.write_bytes(b"other")
    folder.join("c.bin").write_bytes(b"")
    assert (file.read_bytes(), file.size(), file.exists()) == (b"other", 5, True)
    assert file.sha256() == hash_bytes(b"other")
    assert folder.list() == ["a", "c.bin"] and folder.sizes() == {"c.bin": 0}
    assert folder.read_many(["a/b.bin", "absent"]) == {"a/b.bin": b"other"}
    assert content_identity(file.uri, folder.options)["etag"] == hashlib.md5(b"other").hexdigest()
    filesystem, path = file.arrow()
    assert filesystem.get_file_info(path).size == 5
    # Other writers are seen at once: nothing is answered from a cache of listings.
    server.objects["bucket/workspace/d.bin"] = b"1"
    assert folder.list() == ["a", "c.bin", "d.bin"]
    folder.delete(recursive=True)
    assert folder.list() == [] and server.objects == {}


def test_conditional_writes_are_found_by_trying(folder: Location, server: S3Server) -> None:
    assert folder.join("lease").creates_exclusively() is server.conditional
    assert server.objects == {}


def test_failed_run_is_resumed_and_then_reused(folder: Location, context: Context) -> None:
    store = ArtifactStore(folder, lease_timing=QUICK)
    with pytest.raises(RuntimeError, match="broken"):
        materialise(Units(fails=True), 3, {}, store, context)
    again = Units()
    outcome = materialise(again, 3, {}, store, context)
    assert outcome.action == "resumed" and again.made == 0
    local = outcome.artifact.local_dir("out")
    assert {p.name: p.read_text() for p in local.iterdir()} == {
        "0.txt": "0",
        "1.txt": "1",
        "2.txt": "2",
    }
    assert materialise(Units(), 3, {}, store, context).action == "reused"
    assert outcome.artifact.location.list() == ["attempts", "manifest.json"]


def test_of_two_runs_at_once_one_computes(folder: Location, context: Context) -> None:
    store = ArtifactStore(folder, lease_timing=QUICK)
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(
            target=lambda: outcomes.append(materialise(Units(), 2, {}, store, context))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(outcome.action for outcome in outcomes) == ["computed", "reused"]


def test_store_that_cannot_be_reached_is_named(
    folder: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORE_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(ResourceError) as caught:
        folder.list()
    assert caught.value.code == "storage_failed" and caught.value.where == folder.uri
    assert "credentials" in caught.value.hint
