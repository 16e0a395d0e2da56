"""``octavo serve``: from settings to a listening server, and back down in order."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from octavo.config import EngineConfig, ServerConfig
from octavo.engine.client import EngineClient
from octavo.engine.messages import Stats
from octavo.models.checkpoint import Checkpoint
from octavo.models.load import open_checkpoint
from octavo.server.app import create_app
from octavo.server.body import BodyReader
from octavo.server.connections import HttpServer
from octavo.server.listen import address_of, listen
from octavo.server.metrics import Metrics, at_rest
from octavo.server.service import Service, sampling_defaults
from octavo.version import __version__

if TYPE_CHECKING:
    from octavo.models.chat import ChatTemplate
    from octavo.models.tokenizer import Tokenizer

ENGINE_GRACE_S = 5.0  # for the engine to end once no request is left
LAST_ANSWERS_S = 5  # for connections to take what they are told when the time to finish is over
NOT_FOLLOWED = ("repetition_penalty", "min_p")  # of generation_config.json: changes the output, but is not supported yet

logger = logging.getLogger(__name__)


def serve(
    engine_config: EngineConfig,
    server_config: ServerConfig,
    checkpoint: Checkpoint | None = None,
    engine: EngineClient | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit status: 0, or 1 if the engine died meanwhile.

    Raises ConfigError, ModelError or EngineDeadError if serving cannot begin. ``engine``: a client that is not started yet,
    for an engine other than octavo's own.
    """
    checkpoint = checkpoint or open_checkpoint(engine_config.model)
    with listen(server_config.host, server_config.port) as listener:
        serving = _Serving(engine_config, server_config, checkpoint, engine or EngineClient(), listener)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(serving.run())


class _Serving:
    """One server's life: start, serve, finish."""

    def __init__(
        self,
        engine_config: EngineConfig,
        config: ServerConfig,
        checkpoint: Checkpoint,
        engine: EngineClient,
        listener: socket.socket,
    ):
        self._engine_config = engine_config
        self._config = config
        self._checkpoint = checkpoint
        self._engine = engine
        self._listener = listener
        self._stop = asyncio.Event()

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        starting = asyncio.create_task(self._start())
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return await self._serve(starting.result()) if starting.done() else 0
        finally:
            for task in (starting, stopped):
                task.cancel()
            await asyncio.gather(starting, stopped, return_exceptions=True)
            await self._engine.close(ENGINE_GRACE_S)

    def _on_signal(self, number: int) -> None:
        """The first asks to finish what runs, the second ends everything at once."""
        if self._stop.is_set():
            self._engine.kill()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(128 + number)
        self._stop.set()

    async def _start(self) -> Service:
        """Start the engine and, while it loads the weights, read the tokenizer."""
        checkpoint, config = self._checkpoint, self._engine_config
        name = self._config.served_model_name or config.model
        generation_config = checkpoint.generation_defaults()
        defaults = sampling_defaults(generation_config)
        for field in NOT_FOLLOWED:
            if generation_config.get(field) not in (None, 0, 1):
                logger.warning(
                    "generation_config.json asks for %s %s: that is not supported yet and left out.",
                    field,
                    generation_config[field],
                )
        engine = asyncio.create_task(self._engine.start(config))
        try:
            tokenizer, template = await asyncio.to_thread(_text_side, checkpoint)
            ready = await engine
        except BaseException:
            engine.cancel()
            await asyncio.gather(engine, return_exceptions=True)
            raise
        metrics = Metrics(name, self._stats)
        metrics.ready(ready)
        self._engine.on_outputs = metrics.on_outputs
        return Service(
            engine=self._engine,
            tokenizer=tokenizer,
            template=template,
            model=name,
            root=config.model,
            context=ready.max_model_len,
            vocab=checkpoint.config.vocab,
            defaults=defaults,
            metrics=metrics,
        )

    async def _serve(self, service: Service) -> int:
        bodies = BodyReader(self._config.max_request_bytes)
        http = HttpServer(create_app(service, self._config.api_key, bodies))
        serving = asyncio.create_task(http.serve(sockets=[self._listener]))
        gc.collect()
        gc.freeze()  # what is there now stays; collections from here on look only at what requests bring
        self._announce(service)
        stopped = asyncio.create_task(self._stop.wait())
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        dead = self._engine.dead
        self._say_what_is_left(service.metrics.under_way)
        bodies.close()
        http.should_exit = True
        done, _ = await asyncio.wait({serving}, timeout=self._config.shutdown_timeout)
        if not done:
            await self._engine.close(ENGINE_GRACE_S, "The server shuts down and the time to finish is over.")
            done, _ = await asyncio.wait({serving}, timeout=LAST_ANSWERS_S)
        if not done:
            http.drop_connections()
        await serving
        if dead is not None:
            print(f"octavo: {dead}", file=sys.stderr)
        return 0 if dead is None else 1

    def _say_what_is_left(self, requests: int) -> None:
        if requests:
            what = "1 request" if requests == 1 else f"{requests} requests"
            limit = f"{self._config.shutdown_timeout:g} s"
            print(f"octavo: finishing {what}, for at most {limit}; a second signal ends at once", flush=True)
        else:
            print("octavo: ending; no request is under way", flush=True)

    def _stats(self) -> Stats:
        return self._engine.stats if self._engine.dead is None else at_rest(self._engine.stats)

    def _announce(self, service: Service) -> None:
        ready = self._engine.ready
        assert ready is not None
        sampling = ", ".join(f"{name} {value:g}" for name, value in service.defaults.items())
        lines = ready.effective | {"sampling": f"{sampling or 'temperature 1'} unless a request says otherwise"}
        width = max(map(len, lines))
        for name, value in lines.items():
            print(f"{name:{width}}  {value}")
        print(f"octavo {__version__} serves {service.model} at http://{address_of(self._listener)}/v1", flush=True)


def _text_side(checkpoint: Checkpoint) -> tuple[Tokenizer, ChatTemplate | None]:
    tokenizer = checkpoint.tokenizer
    tokenizer.least_tokens("")  # looks through the vocabulary the first time
    return tokenizer, checkpoint.chat_template


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (the extra ``fast-http``)."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
