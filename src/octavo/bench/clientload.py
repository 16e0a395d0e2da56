"""ClientLoad: what the load generator itself cost, and whether it was too slow for the load."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.bench.metrics import Spread
from octavo.bench.record import RequestRecord

BUSY = 0.7  # share of a core from which events wait for the client noticeably
STARVED = 0.1  # share of the time in which the client was ready to run and no CPU was free
SHORTEST_S = 0.2
LATE_S = 0.010  # a send this late at p99 is the client's fault, timers are exact to 1 ms


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """The client during one run. Shares are of wall time; None where it cannot be told.

    cpu_share:  of one core, that this process computed. In process: of the time, that went into anything but the engine.
    wait_share: that this thread was ready to run and waited for a CPU.
    send_late_s: how long after its intended moment each request was sent; in process None: there a request waits for the step.
    in_process: the engine ran in this process.
    """

    cpu_share: float | None
    wait_share: float | None
    send_late_s: Spread | None
    in_process: bool

    def warning(self) -> str | None:
        """A sentence where the client, not the server, decided the figures."""
        if self.in_process:
            return None
        reasons = []
        if self.cpu_share is not None and self.cpu_share > BUSY:
            reasons.append(f"it used {self.cpu_share:.0%} of a core, and has one")
        if self.wait_share is not None and self.wait_share > STARVED:
            reasons.append(f"it waited for a free CPU {self.wait_share:.0%} of the time")
        if self.send_late_s is not None and self.send_late_s.p99 > LATE_S:
            reasons.append(f"it sent {self.send_late_s.p99 * 1e3:.0f} ms late at p99")
        if not reasons:
            return None
        return "The client is the bottleneck: " + "; ".join(reasons) + ". Latencies are too high and rates too low."


class Stopwatch:
    """Measures this process and thread from its construction on."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._wait = time.monotonic(), time.process_time(), _run_queue_wait()

    def read(self) -> tuple[float | None, float | None]:
        """cpu_share and wait_share since the start; None for a time that is too short to have any."""
        wall = time.monotonic() - self._wall
        if wall < SHORTEST_S:
            return None, None
        waited = _run_queue_wait()
        wait = None if waited is None or self._wait is None else (waited - self._wait) / wall
        return (time.process_time() - self._cpu) / wall, wait


def lateness(records: Sequence[RequestRecord]) -> Spread | None:
    """How late requests were sent."""
    return Spread.of(r.sent - r.intended for r in records if r.sent is not None)


def _run_queue_wait() -> float | None:
    """Seconds that this thread has waited on a run queue; None where the kernel does not tell."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return None
