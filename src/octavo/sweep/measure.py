"""One point, once: a workload sent to an engine that has just been put together."""

from __future__ import annotations

import gc
import shlex
from collections.abc import Sequence
from typing import Any

from octavo.bench.interrupt import Interrupt
from octavo.bench.load import Load
from octavo.bench.prompts import PromptMaker
from octavo.bench.report import Json, Result, document
from octavo.bench.run import run_engine
from octavo.bench.workload import BenchRequest, Workload
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.core import EngineCore
from octavo.models.checkpoint import Checkpoint
from octavo.observe.read import read_record
from octavo.observe.record import StepRecord
from octavo.observe.recorder import KEPT_STEPS
from octavo.sweep.aged import age
from octavo.sweep.point import Point
from octavo.sweep.runners import SharedRunner

WARMUP = 1  # requests: memory and runner are warm already


class Bench:
    """Measures points of one model. The load is closed: a request is sent when one has ended. Prompts are the same every time."""

    def __init__(self, checkpoint: Checkpoint, runners: SharedRunner, words: Sequence[str] = ()):
        """``words``: the command line, for the documents."""
        self._checkpoint = checkpoint
        self._runners = runners
        self._command = shlex.join(["octavo", *words])
        self._maker = PromptMaker(0, vocab_size=checkpoint.config.vocab, tokenizer=checkpoint.tokenizer)
        self._prompts: dict[tuple[object, ...], list[int]] = {}  # making them takes longer than sending them

    def run(self, point: Point, config: EngineConfig, workload: Workload, interrupt: Interrupt, title: str = "") -> Json | None:
        """A document as ``octavo bench --json`` writes one, and under "steps" what the engine's record has of the run (see
        ``step_figures``). None where it was interrupted."""
        core = build_engine(config, self._checkpoint, self._runners)
        try:
            age(core.kv, point.group.concurrency)
            load = Load(concurrency=point.group.concurrency, warmup=WARMUP)
            run = run_engine(core, workload.requests, load, self._prompt, interrupt=interrupt, title=title)
            if run.end is not None:
                return None
            steps = _steps_since(core, min(record.intended for record in run.records))
            figures = step_figures(steps, core.kv.arena.spec.token_bytes)
        finally:
            core.close()
        described = self._describe(config, core.effective) | {"load": load.json(workload.requests)}
        del core  # its KV memory must not be there while the next one is measured
        gc.collect()
        result = Result(workload, point.setup.title, described, runs=[run])
        return document(self._command, [result.json()]) | {"steps": figures}

    def _prompt(self, request: BenchRequest) -> list[int]:
        key = (request.index, *request.segments)
        if key not in self._prompts:
            self._prompts[key] = self._maker.ids(request)
        return self._prompts[key]

    @staticmethod
    def _describe(config: EngineConfig, effective: dict[str, str]) -> dict[str, Any]:
        settings = {
            name: value for name in EngineConfig.names() if (value := getattr(config, name)) != getattr(EngineConfig(), name)
        }
        return {
            "title": f"{config.model}, in this process",
            "summary": ", ".join(f"{name} {value}" for name, value in settings.items() if name != "model"),
            "target": "in process",
            "model": config.model,
            "settings": settings,
            "engine": effective,
            "prompt": "token ids",
            "prompt_seed": 0,
        }


def step_figures(steps: Sequence[StepRecord], token_bytes: int) -> Json:
    """Of the steps of a run, at least one: how many, and launches in the mean of them; and of the step that uses most KV memory
    the bytes reserved, used and wasted, and those of block tables in use.

    One moment for all of them, so that they add up: places reserved for a prompt that is about to be computed are waste by the
    books, and each peak by itself would show them. token_bytes: of the KV cache.
    """
    fullest = max(steps, key=lambda step: step.kv_used)
    return {
        "count": len(steps),
        "launches_per_step": sum(step.launches for step in steps) / len(steps),
        "kv_reserved": fullest.kv_reserved * token_bytes,
        "kv_used": fullest.kv_used * token_bytes,
        "kv_wasted": (fullest.kv_wasted_inside + fullest.kv_wasted_outside) * token_bytes,
        "table_bytes": fullest.table_bytes,
    }


def _steps_since(core: EngineCore, moment: float) -> list[StepRecord]:
    """Those planned from then on; of a run of more than KEPT_STEPS the last ones."""
    return [step for step in read_record(core.window(steps=KEPT_STEPS)).steps if step.start >= moment]
