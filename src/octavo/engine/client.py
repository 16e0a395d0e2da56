"""EngineClient: the engine in a child process, seen from asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence

import msgspec
import zmq
import zmq.asyncio

from octavo.config import EngineConfig
from octavo.engine.messages import (
    Abort,
    Add,
    Failed,
    FromEngine,
    GetWindow,
    Outputs,
    Ready,
    Rejected,
    Shutdown,
    Stats,
    TextTime,
    ToEngine,
    Window,
)
from octavo.errors import EngineDeadError, EngineError, OctavoError, RequestError
from octavo.observe.recorder import check_window
from octavo.request import Request, TokenUpdate

CHILD = (sys.executable, "-m", "octavo.engine.process")
LAST_WORDS_S = 0.5  # how long after the child's death a message that explains it may still be on its way
LONGEST_SOCKET_PATH = 100  # a Unix socket's path has room for 107 bytes

logger = logging.getLogger(__name__)


class EngineClient:
    """Starts the engine's process, sends it requests and hands out what comes back. Belongs to one event loop.

    ready:     what the engine said when it was ready to serve; set by ``start``.
    stats:     the latest gauges and counters; always at least as new as any update handed out.
    dead:      why the engine is gone, as a sentence; None while it runs.
    on_outputs: called with each step's Outputs before any of them is handed out.
    """

    def __init__(self, command: Sequence[str] = CHILD, on_outputs: Callable[[Outputs], None] | None = None):
        """``command``: the child's command line, without the three arguments of ``octavo.engine.process``."""
        self.ready: Ready | None = None
        self.stats = Stats()
        self.dead: str | None = None
        self.on_outputs = on_outputs
        self._command = command
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(FromEngine).decode
        self._mail: dict[str, _Mailbox] = {}
        self._windows: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = itertools.count()
        self._process: asyncio.subprocess.Process | None = None
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._folder: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    # ---- life

    async def start(self, config: EngineConfig) -> Ready:
        """Start the child and wait until it serves. Raises EngineDeadError with its sentence if it cannot. May be cancelled."""
        try:
            return await self._start(config)
        except BaseException:
            await self.close(0)
            raise

    async def _start(self, config: EngineConfig) -> Ready:
        self._folder = _private_folder()
        address = f"ipc://{self._folder}/engine"
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)  # mail waits in the boxes, merged; nothing may ever block the engine
        self._socket.linger = 0
        self._socket.bind(address)
        settings = msgspec.json.encode(dataclasses.asdict(config)).decode()
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            *(address, str(os.getpid()), settings),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is for the parent, which decides when the engine ends
        )
        ready = asyncio.get_running_loop().create_future()
        self._tasks = [asyncio.create_task(self._read(ready)), asyncio.create_task(self._watch(self._process, ready))]
        self.ready = await ready
        self._remove_folder()  # connected: nobody else needs the address, and nothing is left behind whatever happens
        return self.ready

    async def close(self, grace: float = 5.0, reason: str = "The engine was closed.") -> None:
        """End the child: ask it, and after ``grace`` seconds kill it. Requests that still run get EngineDeadError(reason)."""
        process = self._process
        self._die(reason)
        if process is not None and process.returncode is None:
            if grace > 0:
                self._send(Shutdown())
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(process.wait(), grace)
            self.kill()
            await process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        if self._context is not None:
            self._context.term()
        self._socket = self._context = None
        self._remove_folder()

    def kill(self) -> None:
        """End the child at once."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _remove_folder(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    # ---- requests

    async def generate(self, request: Request) -> AsyncGenerator[TokenUpdate, None]:
        """The request's updates until the one that has ``finish``. Updates that wait to be taken are merged into one.

        Leaving early (closing the iterator, cancellation) aborts the request. Raises RequestError where the engine refuses it,
        EngineError where it fails on it, EngineDeadError when the engine is or goes away.
        """
        self.check_alive()
        if request.id in self._mail:
            raise RequestError(f"request id {request.id} is already in use.", "id")
        self._send(Add(request))
        box = self._mail[request.id] = _Mailbox()
        over = False
        try:
            while not over:
                try:
                    update = await box.take()
                except OctavoError:
                    over = True
                    raise
                over = update.finish is not None
                yield update
        finally:
            del self._mail[request.id]
            if not over:
                self._send(Abort([request.id]))

    async def abort(self, request_id: str) -> None:
        """End a request that a stop string ended. Its iterator still gets the last update: finish "abort", or whatever it ended
        with before."""
        self._send(Abort([request_id], stopped=True))

    def text_time(self, request_id: str, seconds: float) -> None:
        """Tell the record what turning a request's tokens into text took. To be called once the request has ended."""
        if self.dead is None:
            self._send(TextTime(request_id, seconds))

    async def window(self, *, seconds: float | None = None, steps: int | None = None) -> bytes:
        """What the engine recorded lately: see ``Recorder.window``. Raises RequestError for what is no window, EngineDeadError
        when the engine is or goes away."""
        check_window(seconds, steps)
        self.check_alive()
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._windows[number] = answer
        try:
            self._send(GetWindow(number, seconds, steps))
            return await answer
        finally:
            del self._windows[number]

    def check_alive(self) -> None:
        """Raise EngineDeadError if the engine is gone."""
        if self.dead is not None:
            raise EngineDeadError(self.dead)

    def _send(self, message: ToEngine) -> None:
        if self._socket is not None:
            self._socket.send(self._encode(message), zmq.NOBLOCK)  # no limit on the queue: done when it returns

    # ---- news

    async def _read(self, ready: asyncio.Future[Ready]) -> None:
        assert self._socket is not None
        try:
            while True:
                self._take(self._decode(await self._socket.recv()), ready)
        except Exception as error:  # whoever waits must not wait for ever
            logger.exception("The engine's messages cannot be read any more.")
            self._die(f"The engine's messages cannot be read any more: {type(error).__name__}: {error}", ready)
            self.kill()

    def _take(self, message: FromEngine, ready: asyncio.Future[Ready]) -> None:
        if isinstance(message, Outputs):
            self._deliver(message)
        elif isinstance(message, Rejected):
            if box := self._mail.get(message.id):
                internal = message.internal
                box.fail(EngineError(message.message) if internal else RequestError(message.message, message.param))
        elif isinstance(message, Window):
            answer = self._windows.get(message.number)
            if answer is not None and not answer.done():  # whoever asked may have left
                answer.set_result(message.record)
        elif isinstance(message, Failed):
            self._die(message.message, ready)
        elif not ready.done():
            ready.set_result(message)

    def _deliver(self, outputs: Outputs) -> None:
        self.stats = outputs.stats
        if self.on_outputs is not None:
            self.on_outputs(outputs)
        for update in outputs.updates:
            if box := self._mail.get(update.id):
                box.put(update)

    async def _watch(self, process: asyncio.subprocess.Process, ready: asyncio.Future[Ready]) -> None:
        """Notice the child's end, however it came."""
        status = await process.wait()
        if status > 0 and self.dead is None:
            await asyncio.sleep(LAST_WORDS_S)
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self._die(f"The engine process {how}.", ready)

    def _die(self, reason: str, ready: asyncio.Future[Ready] | None = None) -> None:
        if self.dead is None:
            self.dead = reason
        if ready is not None and not ready.done():
            ready.set_exception(EngineDeadError(self.dead))
        for box in self._mail.values():
            box.fail(EngineDeadError(self.dead))
        for answer in self._windows.values():
            if not answer.done():
                answer.set_exception(EngineDeadError(self.dead))


class _Mailbox:
    """Where a request's updates wait, merged into one, so that a slow reader costs no more than its tokens."""

    def __init__(self) -> None:
        self._news = asyncio.Event()
        self._update: TokenUpdate | None = None
        self._error: OctavoError | None = None

    def put(self, update: TokenUpdate) -> None:
        if (waiting := self._update) is not None:
            waiting.tokens += update.tokens
            update.tokens = waiting.tokens
        self._update = update
        self._news.set()

    def fail(self, error: OctavoError) -> None:
        self._error = error
        self._news.set()

    async def take(self) -> TokenUpdate:
        """The next update; an error comes after what was there before it."""
        await self._news.wait()
        if (update := self._update) is not None:
            self._update = None
            if self._error is None:
                self._news.clear()
            return update
        assert self._error is not None
        raise self._error


def _private_folder() -> str:
    folder = tempfile.mkdtemp(prefix="octavo-")
    if len(os.fsencode(folder)) > LONGEST_SOCKET_PATH - len("/engine"):
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="octavo-", dir="/tmp")
    return folder
