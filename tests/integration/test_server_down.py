"""PREFECT_API_URL names what isn't a Prefect server: an error that says so, and nothing else."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from sandbox import Sandbox

CALL = """
import json, sys
from flows.finetune import finetune

result = finetune(sys.argv[1])
print(json.dumps({"run_id": result.run_id, "status": result.status} | result.error.as_dict()))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class WebPages(http.server.BaseHTTPRequestHandler):
    """Pages at every path, as an application in the browser has them, except below `/api`."""

    def do_GET(self) -> None:
        body = b"<html></html>"
        self.send_response(404 if self.path.startswith("/api/") else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def web_server() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), WebPages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def refused(done: subprocess.CompletedProcess[str], url: str) -> str:
    """Checks the error that every such URL leads to, and gives its rule."""
    assert done.returncode == 4, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["where"]) == ("no_prefect_server", url)
    assert "prefect server start" in error["hint"] and "unset PREFECT_API_URL" in error["hint"]
    return error["rule"]


def run(sandbox: Sandbox, url: str) -> subprocess.CompletedProcess[str]:
    return sandbox.call("run", str(sandbox.config), "--json", env={"PREFECT_API_URL": url})


def test_server_that_is_down(sandbox: Sandbox) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    done = run(sandbox, url)
    assert "refused" in refused(done, url)
    listed = sandbox.call("runs", "--workspace", str(sandbox.workspace), "--json")
    (record,) = json.loads(listed.stdout)["runs"]
    assert (record["run_id"], record["status"]) == (json.loads(done.stdout)["run_id"], "failed")
    assert record["error"]["code"] == "no_prefect_server"


@pytest.mark.parametrize(
    ("path", "said"), [("/api", "404"), ("", "isn't Prefect's API")], ids=["404", "web_pages"]
)
def test_server_that_is_another(path: str, said: str, web_server: str, sandbox: Sandbox) -> None:
    assert said in refused(run(sandbox, web_server + path), web_server + path)


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/api", "127.0.0.1:4200/api", "nonsense"])
def test_url_that_is_none(url: str, sandbox: Sandbox) -> None:
    refused(run(sandbox, url), url)


def test_from_python_it_is_the_results_error(sandbox: Sandbox) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    done = subprocess.run(
        [sys.executable, "-c", CALL, str(sandbox.config)],
        cwd=sandbox.folder,
        env=sandbox.environment(PREFECT_API_URL=url),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["status"], result["code"]) == ("failed", "no_prefect_server")
    assert result["where"] == url


def test_event_that_nobody_takes(sandbox: Sandbox) -> None:
    url = f"http://127.0.0.1:{free_port()}/api"
    arguments = ("emit", "data.changed", str(sandbox.config))
    done = sandbox.call(*arguments, env={"PREFECT_API_URL": url})
    assert done.returncode == 4
    assert "no_prefect_server" in done.stderr and "Traceback" not in done.stderr


def test_settings_that_prefect_refuses(sandbox: Sandbox) -> None:
    for variables, where in (
        ({"PREFECT_API_URL": "http://[::/api"}, "Prefect's Settings"),
        ({"PREFECT_LOGGING_LEVEL": "loud"}, "Prefect's LoggingSettings.level"),
    ):
        done = sandbox.call("run", str(sandbox.config), "--json", env=variables)
        error = json.loads(done.stdout)["error"]
        assert (done.returncode, error["code"]) == (2, "bad_prefect_settings")
        assert error["where"] == where
        assert "Traceback" not in done.stderr
