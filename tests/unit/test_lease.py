"""Leases: who waits, who takes over, and that waiting can be ended."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import uuid
from dataclasses import asdict, replace
from pathlib import Path

import fsspec
import psutil
import pytest
from fsspec import AbstractFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from configs.errors import ModelmillError, ResourceError
from tasks.lease import Holder, LeaseTiming, acquire
from tasks.storage import Location

QUICK = LeaseTiming(
    heartbeat_seconds=0.05, stale_seconds=1.0, poll_seconds=0.02, settle_seconds=0.1
)
ELSEWHERE = Holder(token="theirs", host="far", machine="another boot", pid=1, started=0.0)
LOG = logging.getLogger("modelmill.test")


class LookThenWrite(MemoryFileSystem):
    """A store whose exclusive create is fsspec's fallback: look, then write."""

    protocol = "laxlease"
    pipe_file = AbstractFileSystem.pipe_file


@pytest.fixture(params=["local", "memory", "no exclusive create"])
def lease(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    if request.param == "local":
        return Location(str(tmp_path / "fingerprint" / "lease.json"))
    if request.param == "memory":
        return Location(f"memory://{uuid.uuid4().hex}/lease.json")
    fsspec.register_implementation("laxlease", LookThenWrite, clobber=True)
    return Location(f"laxlease://{uuid.uuid4().hex}/lease.json")


def put(location: Location, holder: Holder, *, beat: int = 0) -> None:
    location.write_bytes(json.dumps({**asdict(holder), "beat": beat}).encode())


def dead_holder() -> Holder:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = psutil.Process(process.pid).create_time()
        process.kill()
        process.wait()
    return replace(Holder.here(), pid=process.pid, started=started)


def test_free_lease_is_held_and_removed(lease: Location) -> None:
    with acquire(lease, stop=threading.Event(), log=LOG, timing=QUICK) as held:
        assert json.loads(lease.read_bytes())["pid"] == os.getpid()
        assert not held.lost.is_set()
    assert not lease.exists()


def test_lease_is_removed_when_the_work_fails(lease: Location) -> None:
    with (
        pytest.raises(RuntimeError, match="broken"),
        acquire(lease, stop=threading.Event(), log=LOG, timing=QUICK),
    ):
        raise RuntimeError("broken")
    assert not lease.exists()


def test_of_several_waiters_one_at_a_time_works(lease: Location) -> None:
    inside = threading.Semaphore(1)
    turns: list[bool] = []

    def work() -> None:
        with acquire(lease, stop=threading.Event(), log=LOG, timing=QUICK):
            alone = inside.acquire(blocking=False)
            turns.append(alone)
            threading.Event().wait(0.05)
            if alone:
                inside.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert turns == [True] * 4


def test_dead_process_of_this_machine_is_taken_over_without_waiting(
    lease: Location, caplog: pytest.LogCaptureFixture
) -> None:
    holder = dead_holder()
    put(lease, holder)
    never = replace(QUICK, stale_seconds=1e9)
    with acquire(lease, stop=threading.Event(), log=LOG, timing=never):
        assert json.loads(lease.read_bytes())["pid"] == os.getpid()
    assert f"process {holder.pid} on {holder.host}" in caplog.text and "has ended" in caplog.text


def test_pid_that_another_process_has_now_counts_as_dead() -> None:
    me = Holder.here()
    assert not me.is_dead()
    assert replace(me, started=me.started - 3600).is_dead()


def test_process_of_another_boot_or_container_is_never_called_dead() -> None:
    assert not replace(dead_holder(), machine="another boot").is_dead()


def test_silent_holder_elsewhere_is_taken_over(
    lease: Location, caplog: pytest.LogCaptureFixture
) -> None:
    put(lease, ELSEWHERE)
    with acquire(lease, stop=threading.Event(), log=LOG, timing=QUICK):
        assert json.loads(lease.read_bytes())["token"] != "theirs"
    assert "was silent for 1 s" in caplog.text


def test_holder_with_a_heartbeat_is_waited_for_and_named(
    lease: Location, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    put(lease, ELSEWHERE)
    stop = threading.Event()

    def beat() -> None:
        # Half as long again as a silent holder would be waited for.
        for number in range(60):
            put(lease, ELSEWHERE, beat=number)
            threading.Event().wait(0.05)
        stop.set()

    thread = threading.Thread(target=beat)
    thread.start()
    with (
        pytest.raises(ModelmillError) as caught,
        acquire(lease, stop=stop, log=LOG, timing=replace(QUICK, stale_seconds=2.0)),
    ):
        pass
    thread.join()
    assert caught.value.code == "stopped"
    assert caplog.text.count("process 1 on far works on") == 1
    assert json.loads(lease.read_bytes())["token"] == "theirs"


def test_lease_cut_short_is_waited_out(lease: Location) -> None:
    lease.write_bytes(b'{"token": "x", "ho')
    with acquire(lease, stop=threading.Event(), log=LOG, timing=QUICK):
        assert json.loads(lease.read_bytes())["pid"] == os.getpid()


def test_heartbeat_changes_the_lease_while_the_main_thread_is_busy(lease: Location) -> None:
    with acquire(lease, stop=threading.Event(), log=LOG, timing=QUICK):
        first = lease.read_bytes()
        while lease.read_bytes() == first:
            threading.Event().wait(0.01)
        assert json.loads(lease.read_bytes())["beat"] >= 1


def test_holder_that_was_overtaken_notices_and_leaves_the_other_lease(lease: Location) -> None:
    with acquire(lease, stop=threading.Event(), log=LOG, timing=QUICK) as held:
        # A heartbeat on its way may still overwrite the other's name once, as in a real race.
        while not held.lost.wait(0.2):
            put(lease, ELSEWHERE)
    assert json.loads(lease.read_bytes())["token"] == "theirs"


def test_ctrl_c_ends_the_waiting(tmp_path: Path) -> None:
    location = Location(str(tmp_path / "lease.json"))
    put(location, Holder.here())
    program = (
        "import logging, sys, threading\n"
        "from tasks.lease import LeaseTiming, acquire\n"
        "from tasks.storage import Location\n"
        "logging.basicConfig(level=logging.INFO, format='%(message)s', stream=sys.stdout)\n"
        "log = logging.getLogger()\n"
        "with acquire(Location(sys.argv[1]), stop=threading.Event(), log=log,\n"
        "             timing=LeaseTiming()):\n"
        "    print('acquired', flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, location.uri],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert "works on" in process.stdout.readline()
        process.send_signal(2)
        output, errors = process.communicate(timeout=30)
    assert "acquired" not in output and "KeyboardInterrupt" in errors
    assert process.returncode != 0
    assert json.loads(location.read_bytes())["pid"] == os.getpid()


def test_place_that_cannot_hold_a_lease_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "workspace").write_bytes(b"")
    lease = Location(str(tmp_path / "workspace" / "lease.json"))
    with (
        pytest.raises(ResourceError) as caught,
        acquire(lease, stop=threading.Event(), log=LOG, timing=QUICK),
    ):
        pass
    assert caught.value.code == "not_a_folder"
