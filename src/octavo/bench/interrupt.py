"""Interrupt: Ctrl-C ends a measurement and keeps what there is; a second one leaves at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

STATUS = 130


class Interrupt:
    """Between enter and exit SIGINT sets ``wanted`` and calls ``on_interrupt``. Only the main thread may enter."""

    def __init__(self) -> None:
        self.wanted = False
        self.on_interrupt: Callable[[], None] = lambda: None
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            sys.stderr.write("\n")
            os._exit(STATUS)
        self.wanted = True
        self.on_interrupt()
