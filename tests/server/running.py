"""A server in a process of its own, for tests."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

LIMIT_S = 20
ECHO = "echo"  # the scripted engine that answers with the prompt


class Running:
    """A server's process, what it has printed, and a client for it."""

    def __init__(self, command: list[str]):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []
        self._news: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            self._news.put(line)
        self._news.put("")

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_until_it_serves(self, limit: float = LIMIT_S) -> None:
        deadline = time.monotonic() + limit
        while line := self._news.get(timeout=deadline - time.monotonic()):
            if found := re.search(r"serves .* at (http://\S+)/v1$", line):
                self.url = found[1]
                self.http = httpx.Client(base_url=self.url, timeout=LIMIT_S)
                return
        raise AssertionError(f"the server ended: {self.output}")

    def wait(self) -> int:
        """The exit status, once the process has ended."""
        status = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return status

    def close(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)
        if self.url:
            self.http.close()

    # ---- what tests look at

    def engine_pid(self) -> int:
        """The engine's process."""
        (child,) = children(self.process.pid)
        return child

    def metric(self, name: str, **labels: str) -> float:
        """One figure of /metrics."""
        for line in self.http.get("/metrics").text.splitlines():
            if (
                (found := re.fullmatch(r"octavo:(\w+)(?:\{(.*)\})? (\S+)", line))
                and found[1] == name
                and all(f'{key}="{value}"' in (found[2] or "") for key, value in labels.items())
            ):
                return float(found[3])
        raise AssertionError(f"/metrics has no {name} {labels}")

    def until_idle(self) -> None:
        """Wait until no request runs or waits, and check that none holds memory."""
        until(lambda: self.metric("num_requests_running") == self.metric("num_requests_waiting") == 0)
        assert self.metric("kv_cache_usage_perc") == 0


@contextmanager
def running(model: Path, engine_model: str = ECHO, **settings: Any) -> Iterator[Running]:
    """A server with the scripted engine that listens on a free port."""
    server = launch(model, engine_model, **settings)
    try:
        server.wait_until_it_serves()
        yield server
    finally:
        server.close()


def launch(model: Path, engine_model: str = ECHO, **settings: Any) -> Running:
    """The same, still starting."""
    program = Path(__file__).with_name("fake_serve.py")
    return Running([sys.executable, str(program), str(model), engine_model, json.dumps({"port": 0, **settings})])


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def events(lines: Iterator[str]) -> Iterator[Any]:
    """What a stream of server-sent events carries; its last value is "[DONE]" where the stream is complete."""
    for line in lines:
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


def children(pid: int) -> list[int]:
    """The living child processes of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if alive(child)]


def alive(pid: int) -> bool:
    """Whether a process runs: it exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
