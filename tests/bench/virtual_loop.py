"""An event loop whose time jumps to the next timer: seconds pass in no time, and every moment is exact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its time begins at 0."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        """As if something had kept the loop from its work for so long."""
        self._now += seconds

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._now = max(self._now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


class VirtualTime:
    """Stands in for the module ``time`` where code reads the clock itself."""

    def __init__(self, loop: VirtualLoop):
        self.monotonic: Callable[[], float] = loop.time


def run_virtually(monkeypatch: Any, module: Any, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of ``main``, with ``module``'s clock that of the loop."""
    loop = VirtualLoop()
    monkeypatch.setattr(module, "time", VirtualTime(loop))
    try:
        return loop.run_until_complete(main())
    finally:
        loop.close()
