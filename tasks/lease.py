"""The lease of an artifact: of two runs that want the same one, one works and the other waits.

It spares work and guarantees nothing: two runs that both believe to hold it write to separate
places and commit equal results. The holder writes a heartbeat; a waiter measures with its own clock
how long the lease has not changed, so clocks of different machines are never compared.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.errors import ModelmillError
from tasks.storage import Location


@dataclass(frozen=True)
class LeaseTiming:
    """How often a lease is written and read.

    Attributes:
        heartbeat_seconds: Time between two heartbeats of the holder.
        stale_seconds: A lease that a waiter hasn't seen change for so long is taken over.
        poll_seconds: Time between two looks of a waiter.
        settle_seconds: Where a store can't create exclusively, and when a lease is taken over: time
            between writing one's name and looking whether another run wrote over it.
    """

    heartbeat_seconds: float = 10.0
    stale_seconds: float = 60.0
    poll_seconds: float = 0.5
    settle_seconds: float = 1.0


@dataclass(frozen=True)
class Holder:
    """Who holds a lease.

    Attributes:
        token: Random name of this holding.
        host: Host name, for people.
        machine: Boot id and process namespace: within one, a pid means the same process.
        pid: Process id.
        started: Start time of the process (seconds since the epoch), as pids are used again.
    """

    token: str
    host: str
    machine: str
    pid: int
    started: float

    @classmethod
    def here(cls) -> Holder:
        """This process, with a new token."""
        import psutil

        return cls(
            token=secrets.token_hex(8),
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            started=psutil.Process().create_time(),
        )

    def is_dead(self) -> bool:
        """Whether it was a process of this machine that has ended; False if that can't be told."""
        if self.machine != _machine():
            return False
        import psutil

        try:
            process = psutil.Process(self.pid)
            # psutil derives the start from the boot time, which a clock adjustment may shift.
            other = abs(process.create_time() - self.started) > 2.0
            return other or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextlib.contextmanager
def acquire(
    location: Location,
    *,
    stop: threading.Event,
    log: logging.Logger,
    timing: LeaseTiming,
) -> Generator[Lease]:
    """Hold the lease during the block; waits as long as another run holds it.

    Args:
        location: The lease's file.
        stop: Ends the waiting when it is set.
        log: Told once whom this run waits for, and why a lease is taken over.
        timing: Intervals.

    Raises:
        ModelmillError: `stop` was set while waiting (`stopped`).
        ResourceError: The lease can't be read or written.
    """
    holder = _wait_and_claim(location, stop=stop, log=log, timing=timing)
    lease = Lease(location, holder, timing=timing, log=log)
    lease.start()
    try:
        yield lease
    finally:
        lease.release()


class Lease:
    """A lease that is held: a thread of its own writes the heartbeat.

    Attributes:
        lost: Set when another run has taken the lease over.
    """

    def __init__(
        self, location: Location, holder: Holder, *, timing: LeaseTiming, log: logging.Logger
    ) -> None:
        self.lost = threading.Event()
        self._location = location
        self._holder = holder
        self._timing = timing
        self._log = log
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to write heartbeats."""
        self._thread.start()

    def release(self) -> None:
        """End the heartbeat and, if the lease is still this run's, remove it."""
        self._ended.set()
        self._thread.join(timeout=self._timing.heartbeat_seconds)
        try:
            if _token(self._location.read_if_exists()) == self._holder.token:
                self._location.delete()
        except ModelmillError as error:
            # The work is done; a lease left behind only makes the next run look twice.
            self._log.warning("the lease couldn't be removed: %s", error)

    def _beat(self) -> None:
        number = 0
        while not self._ended.wait(self._timing.heartbeat_seconds):
            number += 1
            try:
                token = _token(self._location.read_if_exists())
                if token not in (None, self._holder.token):
                    self.lost.set()
                    self._log.warning(
                        "%s: another run has taken the lease over; this one goes on, and its "
                        "result stays right",
                        self._location.uri,
                    )
                    return
                self._location.write_bytes(_content(self._holder, beat=number), durable=False)
            except ModelmillError as error:
                self._log.warning("a heartbeat couldn't be written: %s", error)


def _wait_and_claim(
    location: Location, *, stop: threading.Event, log: logging.Logger, timing: LeaseTiming
) -> Holder:
    """Claim the lease as soon as it is free, stale, or its holder dead."""
    me = Holder.here()
    exclusive: bool | None = None
    seen: bytes | None = None
    seen_at = 0.0
    announced = False
    while True:
        content = location.read_if_exists()
        if content is None:
            if exclusive is None:
                exclusive = location.creates_exclusively()
            if _claim(location, me, exclusive=exclusive, stop=stop, timing=timing):
                return me
            _pause(stop, timing.poll_seconds, location)
            continue
        if content != seen:
            seen, seen_at = content, time.monotonic()
        holder = _parse(content)
        dead = holder is not None and holder.is_dead()
        if dead or time.monotonic() - seen_at >= timing.stale_seconds:
            reason = "has ended" if dead else f"was silent for {timing.stale_seconds:.0f} s"
            log.warning("%s, which worked on %s, %s: taking over", holder, location.uri, reason)
            # Look again: another waiter may have been quicker.
            if location.read_if_exists() == content and _write_and_settle(
                location, me, stop=stop, timing=timing
            ):
                return me
            continue
        if not announced:
            log.info(
                "%s works on %s already: waiting for it", holder or "another run", location.uri
            )
            announced = True
        _pause(stop, timing.poll_seconds, location)


def _claim(
    location: Location,
    me: Holder,
    *,
    exclusive: bool,
    stop: threading.Event,
    timing: LeaseTiming,
) -> bool:
    if exclusive:
        return location.create(_content(me, beat=0))
    return _write_and_settle(location, me, stop=stop, timing=timing)


def _write_and_settle(
    location: Location, me: Holder, *, stop: threading.Event, timing: LeaseTiming
) -> bool:
    """Write one's name, wait, and see whether it still stands: of several writers the last wins."""
    location.write_bytes(_content(me, beat=0), durable=False)
    _pause(stop, timing.settle_seconds, location)
    return _token(location.read_if_exists()) == me.token


def _pause(stop: threading.Event, seconds: float, location: Location) -> None:
    if stop.wait(seconds):
        raise ModelmillError(
            "stopped while another run worked on the same artifact",
            where=location.uri,
            hint="run the same command again to go on",
            code="stopped",
        )


def _content(holder: Holder, *, beat: int) -> bytes:
    return json.dumps({**asdict(holder), "beat": beat}).encode()


def _parse(content: bytes) -> Holder | None:
    try:
        raw = json.loads(content)
        del raw["beat"]
        return Holder(**raw)
    except (ValueError, TypeError, KeyError):
        return None


def _token(content: bytes | None) -> str | None:
    holder = None if content is None else _parse(content)
    return None if holder is None else holder.token


def _machine() -> str:
    """Name of what a pid is valid in: this boot and, in containers, this process namespace."""
    boot_id, namespace = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot_id.exists() and namespace.exists():
        return f"{boot_id.read_text().strip()} {namespace.readlink()}"
    import psutil

    return f"{socket.gethostname()} {psutil.boot_time():.0f}"
