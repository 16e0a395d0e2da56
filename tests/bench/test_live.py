"""The progress bar's figures."""

from __future__ import annotations

import pytest

from octavo.bench import live as live_module
from octavo.bench.live import Live, Progress


class Clock:
    """Stands in for the module ``time``."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_bar_shows_rates_of_the_last_seconds(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    clock, live = Clock(), Live()
    monkeypatch.setattr(live_module, "time", clock)
    with Progress(live, 10, "short", show=True) as progress:
        for second in range(1, 11):
            clock.now = float(second)
            live.sent, live.done, live.failed = second, second // 2, second // 5
            live.pieces += 20 if second <= 4 else 50
            progress.refresh()
    shown = capsys.readouterr().err.split("\r")
    assert any("short: 7/10 requests" in line and ", 50 output tok/s, 3 under way, 2 failed" in line for line in shown)
    assert any(", 20 output tok/s, 1 under way" in line and "failed" not in line for line in shown)


def test_no_bar_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(Live(), 10, "short") as progress:
        progress.refresh()
    assert capsys.readouterr().err == ""
