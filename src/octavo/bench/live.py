"""Live: the counters of a run under way, and the progress bar that shows them."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

REFRESH_S = 0.5
WINDOW_S = 5.0  # over which rates are shown


class Live:
    """Counts what happens; the load generator only adds to its fields. ``pieces`` are pieces of output, usually tokens."""

    def __init__(self) -> None:
        self.sent = 0
        self.done = 0
        self.failed = 0
        self.pieces = 0


class Progress:
    """A bar on standard error with live rates, where that is a terminal. Call ``refresh`` now and then; leaving removes it."""

    def __init__(self, live: Live, total: int, title: str, show: bool | None = None):
        """``show``: None: where standard error is a terminal."""
        self._live = live
        self._seen: list[tuple[float, int]] = [(time.monotonic(), 0)]
        self._bar = tqdm(
            total=total, desc=title, unit="req", leave=False, file=sys.stderr, disable=None if show is None else not show,
            bar_format="{desc}: {n_fmt}/{total_fmt} requests |{bar}| {elapsed}{postfix}",
        )  # fmt: skip

    def refresh(self) -> None:
        """Show the counters as they are."""
        live, now = self._live, time.monotonic()
        self._seen.append((now, live.pieces))
        while len(self._seen) > 2 and now - self._seen[0][0] > WINDOW_S:
            self._seen.pop(0)
        (then, before), running = self._seen[0], live.sent - live.done - live.failed
        rate = (live.pieces - before) / (now - then) if now > then else 0.0
        failed = f", {live.failed} failed" if live.failed else ""
        self._bar.n = live.done + live.failed
        self._bar.set_postfix_str(f"{rate:.0f} output tok/s, {running} under way{failed}", refresh=False)
        self._bar.refresh()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
