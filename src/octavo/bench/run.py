"""Run: one workload sent once, with warm-up before it, to an engine in this process or to a server."""

from __future__ import annotations

import asyncio
import gc
import resource
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from octavo.bench.client.connection import Address, Pool
from octavo.bench.client.driver import Driver
from octavo.bench.client.in_process import EngineRun
from octavo.bench.client.openai import OpenAITarget, ServerAddress
from octavo.bench.client.scrape import Scrape, scrape
from octavo.bench.clientload import ClientLoad, Stopwatch, lateness
from octavo.bench.interrupt import Interrupt
from octavo.bench.live import REFRESH_S, Live, Progress
from octavo.bench.load import Load
from octavo.bench.record import RequestRecord
from octavo.bench.workload import BenchRequest, Segment
from octavo.engine.core import EngineCore
from octavo.errors import TargetError

WARMUP_PROMPT = 512  # tokens; a warm-up request is cut to these, so that warming up takes no time worth the name
WARMUP_OUTPUT = 16
WARMUP_KEYS = -(2**48)  # keys of contents that no workload uses

Prompt = Callable[[BenchRequest], list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPeak:
    """Bytes of the KV cache at their peaks, each by itself. ``scope``: "run", or "server start" where the peaks are at most those
    since the server's start."""

    reserved: int
    used: int
    wasted: int
    scope: str = "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What came of it.

    records: of the measured requests, in order of sending.
    end:     the moment of the interruption, where there was one.
    cached, looked_up: prompt tokens found in the prefix cache, of those looked up; None where it is not told.
    preemptions: of the server in this time; None where it does not tell.
    """

    records: list[RequestRecord]
    end: float | None
    client: ClientLoad
    kv: KVPeak | None = None
    cached: int | None = None
    looked_up: int | None = None
    preemptions: int | None = None


def warmup(requests: Sequence[BenchRequest], count: int) -> list[BenchRequest]:
    """``count`` requests as the workload's first ones are, shortened, with contents that occur nowhere else."""
    made = []
    for i in range(count if requests else 0):
        model = requests[i % len(requests)]
        tokens = min(model.prompt_tokens, WARMUP_PROMPT)
        made.append(BenchRequest(-1 - i, (Segment(WARMUP_KEYS - i, tokens),), min(model.output_tokens, WARMUP_OUTPUT)))
    return made


def run_engine(
    core: EngineCore,
    requests: Sequence[BenchRequest],
    load: Load,
    prompt: Prompt,
    *,
    interrupt: Interrupt | None = None,
    title: str = "",
    show: bool | None = None,
) -> Run:
    """Send the requests to an engine in this process that has nothing else to do. The prefix cache is emptied before.

    prompt: makes a request's token ids. show: a progress bar; None: where standard error is a terminal.
    """
    interrupt = interrupt or Interrupt()
    arrivals, limit = load.arrivals(requests), load.limit(requests)
    first = warmup(requests, load.warmup)
    prompts = {request.index: prompt(request) for request in (*first, *requests)}
    live = Live()

    def stop() -> bool:
        return interrupt.wanted

    EngineRun(core, first, None, limit, prompts, timeout_s=load.timeout_s, live=Live(), stop=stop).run()
    core.kv.reset_prefix()
    core.reset_peaks()
    before = core.stats()
    with _quiet_gc(), Progress(live, len(requests), title, show) as progress:
        run = EngineRun(
            core, requests, arrivals, limit, prompts,
            timeout_s=load.timeout_s, live=live, stop=stop, refresh=progress.refresh,
        )  # fmt: skip
        begin = time.monotonic()
        records = run.run()
        end = time.monotonic()
    after = core.stats()
    busy = end - begin - run.idle_s
    client = ClientLoad(1 - run.engine_s / busy if busy > 0 else None, None, None, True)
    return Run(
        records=records,
        end=end if interrupt.wanted else None,
        client=client,
        kv=_peak(after.kv_peak_bytes(), "run"),
        cached=after.prefix_hits - before.prefix_hits,
        looked_up=after.prefix_queries - before.prefix_queries,
        preemptions=after.preemptions - before.preemptions,
    )


def run_server(
    address: ServerAddress,
    target: OpenAITarget,
    requests: Sequence[BenchRequest],
    load: Load,
    *,
    interrupt: Interrupt | None = None,
    title: str = "",
    show: bool | None = None,
) -> Run:
    """Send the requests to a server. Raises TargetError where not one of the warm-up's requests is answered."""
    interrupt = interrupt or Interrupt()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run_server(address, target, requests, load, interrupt, title, show))


async def _run_server(
    address: ServerAddress,
    target: OpenAITarget,
    requests: Sequence[BenchRequest],
    load: Load,
    interrupt: Interrupt,
    title: str,
    show: bool | None,
) -> Run:
    arrivals, limit = load.arrivals(requests), load.limit(requests)
    _raise_file_limit(limit)
    loop = asyncio.get_running_loop()
    first = warmup(requests, load.warmup)
    payloads = target.payloads([*first, *requests], f"octavo-bench-{uuid.uuid4().hex[:8]}")
    try:
        pool = Pool(await Address.resolve(address.url))
    except OSError as error:
        raise TargetError(f"{address.base} cannot be resolved: {error}.") from None
    live = Live()
    warming = Driver(first, None, limit, target.sender(pool, payloads, Live()), Live())
    driver = Driver(requests, arrivals, limit, target.sender(pool, payloads, live), live)

    def stop() -> None:
        loop.call_soon_threadsafe(warming.stop)
        loop.call_soon_threadsafe(driver.stop)

    interrupt.on_interrupt = stop
    await warming.run()
    failed = [record for record in warming.records if record.error is not None]
    if failed and len(failed) == len(first):
        pool.close()
        raise TargetError(f"{address.base} answers none of {len(first)} warm-up requests: {failed[0].error}: {failed[0].message}")
    before = await asyncio.to_thread(scrape, address)
    with _quiet_gc(), Progress(live, len(requests), title, show) as progress:
        showing = loop.create_task(_refresh(progress))
        watch = Stopwatch()
        records = await driver.run() if not interrupt.wanted else []
        end = time.monotonic()
        cpu, wait = watch.read()
        showing.cancel()
    interrupt.on_interrupt = lambda: None
    pool.close()
    after = await asyncio.to_thread(scrape, address)
    return _with_counters(
        Run(
            records=records,
            end=end if interrupt.wanted else None,
            client=ClientLoad(cpu, wait, lateness(records), False),
        ),
        before,
        after,
    )


async def _refresh(progress: Progress) -> None:
    while True:
        await asyncio.sleep(REFRESH_S)
        progress.refresh()


def _with_counters(run: Run, before: Scrape, after: Scrape) -> Run:
    """The run with what the server's own figures say about it."""

    def grown(name: str) -> int | None:
        return int(after.counters[name] - before.counters[name]) if name in before.counters and name in after.counters else None

    kv = None
    if len(after.peaks) == 3:
        kv = _peak(after.peaks, "run" if after.peaks["reserved"] > before.peaks.get("reserved", 0) else "server start")
    told = [r for r in run.records if r.cached_tokens is not None]
    cached = sum(r.cached_tokens or 0 for r in told) if told else grown("prefix_cache_hits")
    looked_up = sum(r.prompt_tokens for r in told) if told else grown("prefix_cache_queries")
    return Run(
        records=run.records,
        end=run.end,
        client=run.client,
        kv=kv,
        cached=cached,
        looked_up=looked_up,
        preemptions=grown("num_preemptions"),
    )


def _peak(states: dict[str, int], scope: str) -> KVPeak:
    return KVPeak(reserved=states["reserved"], used=states["used"], wasted=states["wasted"], scope=scope)


@contextmanager
def _quiet_gc() -> Iterator[None]:
    """What is there now is left out of collections, whose pauses would count as latency; what comes is still collected."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _raise_file_limit(connections: int) -> None:
    """Let this process open as many connections as it may need, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + 256
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (the extra ``fast-http``): a third of the time for each event."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
