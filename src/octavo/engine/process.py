"""The engine in a process of its own: ``python -m octavo.engine.process ADDRESS PARENT CONFIG``.

It talks msgpack over one ZeroMQ PAIR socket with the process that started it (``client.py``) and ends with it. Messages are
handled between steps: a request that is dropped has freed its memory before the next step begins.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import zmq

from octavo.config import EngineConfig, from_mapping
from octavo.engine.messages import (
    Abort,
    Add,
    Failed,
    FromEngine,
    GetWindow,
    Outputs,
    Rejected,
    Shutdown,
    TextTime,
    ToEngine,
    Window,
)
from octavo.errors import OctavoError, RequestError

if TYPE_CHECKING:
    from octavo.engine.core import EngineCore

ORPHAN_CHECK_MS = 1000  # how often an idle engine looks whether its parent still lives
LINGER_MS = 2000  # how long the last message may take to reach the parent
PR_SET_PDEATHSIG = 1


class EngineProcess:
    """The loop: drain messages, step, send what came of it; when there is no work, wait for a message."""

    def __init__(self, socket: zmq.Socket[bytes], parent: int, build: Callable[[], EngineCore]):
        self._socket = socket
        self._parent = parent
        self._build = build
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode

    def run(self) -> int:
        """Build the engine and serve until Shutdown or until the parent is gone. Returns the exit status."""
        try:
            core = self._build()
            self._send(core.ready())
        except OctavoError as error:
            self._send(Failed(str(error)))
            return 1
        except Exception as error:
            return self._fail("The engine could not start", error)
        gc.collect()
        gc.freeze()  # what was built stays; collections from here on look only at what requests bring
        try:
            self._loop(core)
            core.close()
        except Exception as error:
            status = self._fail("The engine stopped", error)
            core.close_record()  # what led to this is what one wants to see
            return status
        return 0

    def _loop(self, core: EngineCore) -> None:
        checked = True  # whether the engine's integrity was checked since it last had work
        while os.getppid() == self._parent:
            if not core.has_work:
                if not checked:
                    core.check()
                    checked = True
                if not self._socket.poll(ORPHAN_CHECK_MS):
                    continue
            for message in self._drain():
                if isinstance(message, Shutdown):
                    return
                checked = self._take(core, message) and checked
            if core.has_work:
                self._send(core.step())

    def _take(self, core: EngineCore, message: Add | Abort | TextTime | GetWindow) -> bool:
        """Do what a message asks for. Returns whether nothing was changed by it."""
        match message:
            case Add():
                self._add(core, message)
                return False
            case Abort():
                if updates := core.abort(message.ids, message.stopped):
                    self._send(Outputs(updates, core.stats()))
                return False
            case TextTime():
                core.text_time(message.id, message.seconds)
            case GetWindow():
                self._send(Window(message.number, core.window(seconds=message.seconds, steps=message.steps)))
        return True

    def _drain(self) -> list[ToEngine]:
        messages: list[ToEngine] = []
        while True:
            try:
                messages.append(self._decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return messages

    def _add(self, core: EngineCore, message: Add) -> None:
        request = message.request
        try:
            core.add(request)
        except RequestError as error:
            self._send(Rejected(request.id, str(error), error.param))
        except Exception as error:
            traceback.print_exc()
            self._send(Rejected(request.id, f"The engine could not take the request: {_describe(error)}", internal=True))

    def _send(self, message: FromEngine) -> None:
        self._socket.send(self._encode(message))

    def _fail(self, what: str, error: Exception) -> int:
        traceback.print_exc()
        self._send(Failed(f"{what}: {_describe(error)}"))
        return 1


def run(address: str, parent: int, build: Callable[[], EngineCore]) -> int:
    """Connect to the parent and serve the engine that ``build`` makes. Returns the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    context = zmq.Context()
    socket: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    socket.set_hwm(0)  # what waits here is bounded by the requests under way; a step must never block on a full queue
    socket.linger = LINGER_MS
    socket.connect(address)
    try:
        return EngineProcess(socket, parent, build).run()
    finally:
        socket.close()
        context.term()


def _describe(error: Exception) -> str:
    return str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"


def main(argv: list[str]) -> int:
    """Entry point. ``argv``: the socket's address, the parent's process id, the EngineConfig as JSON."""
    address, parent, config = argv

    def build() -> EngineCore:
        from octavo.engine.build import build_engine

        return build_engine(from_mapping(EngineConfig, msgspec.json.decode(config)))

    return run(address, int(parent), build)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
