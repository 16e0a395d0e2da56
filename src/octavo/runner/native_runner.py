"""NativeRunner: runs the compiled step program on the CPU, one native call a step. Imports no torch."""

from __future__ import annotations

import ctypes
from array import array

import numpy as np
import numpy.typing as npt

from octavo import machine
from octavo.errors import ConfigError
from octavo.kv.view import KVView
from octavo.models.checkpoint import Checkpoint
from octavo.models.program import Program
from octavo.native.library import CBatch, CMove, COpened, CStepTimes, load
from octavo.native.pool import Pool
from octavo.native.program import KV_KINDS, StepProgram, unsupported
from octavo.runner.base import Runner, StepResult
from octavo.scheduler.plan import Logits, SlotSampling, StepPlan

ATTENTION = ("fused", "per-request")
MASK64 = 0xFFFFFFFFFFFFFFFF


class NativeRunner(Runner):
    """Weights bfloat16, or a GGUF file's quantised blocks as they are; activations bfloat16 or int8 blocks; the residual stream,
    norms, rotations, softmax and logits float32.

    dtype:     "bfloat16".
    attention: "fused", or "per-request": a native call for every row and layer. The results are the same bits.
    threads:   workers of the step program.
    kv_dtype:  "bfloat16" or "int8": of the KV arena.
    widen:     quantised weights become bfloat16 at load.
    eager:     one native call for each operation. Otherwise one for the whole step or, where attention is per request, for all
               operations between two attentions. The results are the same bits.
    keep_logits: set it to get ``StepResult.logits``: those of every row that wants any, in the plan's order.
    utilisation: of the last step: the part of threads x time that was spent inside operations.
    """

    def __init__(
        self,
        program: Program,
        checkpoint: Checkpoint,
        *,
        dtype: str,
        attention: str,
        threads: int,
        slots: int,
        max_model_len: int,
        max_batched_tokens: int,
        kv_dtype: str = "bfloat16",
        eager: bool = False,
        widen: bool = False,
    ):
        self._library = library = load()
        if dtype != "bfloat16":
            raise ConfigError(f"dtype is {dtype}: the native runner computes in bfloat16.")
        if kv_dtype not in KV_KINDS:
            raise ConfigError(f"kv_cache_dtype is {kv_dtype}: {', '.join(KV_KINDS)} are accepted.")
        if why := unsupported(library, program, kv_dtype):
            raise ConfigError(f"runner is native, but {why}.")
        self.keep_logits = False
        self.utilisation = 0.0
        self.call_by(attention, eager)
        self._vocab = program.config.vocab
        self._kv_dtype = kv_dtype
        self._pool = Pool(library, threads, machine.allowed_cpus())
        self.threads = self._pool.threads
        self._program = StepProgram(
            library,
            self._pool,
            program,
            checkpoint,
            kv_dtype=kv_dtype,
            slots=slots,
            max_model_len=max_model_len,
            max_batched_tokens=max_batched_tokens,
            widen=widen,
        )
        self._kinds = checkpoint.weight_kinds()
        self._batch = CBatch()
        self._times = CStepTimes()
        self._sampled = np.empty(max(slots, max_batched_tokens), np.int32)
        self._batch.sampled = self._sampled.ctypes.data
        self._items = np.empty(self._program.op_count, np.int32)
        # An attention is several operations of the library's list: one call carries them out.
        attentions = self._program.attentions
        self._attentions = {ops.start: len(ops) for ops in attentions}
        self._continued = [op for ops in attentions for op in ops[1:]]
        starts, stops = [ops.start for ops in attentions], [ops.stop for ops in attentions]
        self._pieces = list(zip([0, *stops], [*starts, self._program.op_count], strict=True))  # between attentions
        # What the batch's pointers refer to, kept so that addresses are looked up only when they change.
        self._arena: object = None
        self._table: object = None

    def call_by(self, attention: str, eager: bool) -> None:
        """How the program is called from the next step on. Raises ConfigError."""
        if attention not in ATTENTION:
            raise ConfigError(f"attention is {attention}: the native runner has {' and '.join(ATTENTION)} attention only.")
        self._apart, self._eager = attention == "per-request", eager

    def describe(self) -> dict[str, str]:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self._kinds.items())
        weights = self._program.weights
        called = "operation" if self._eager else "piece of a step between attentions" if self._apart else "step"
        return {
            "runner": f"native ({self._library.name}), one call per {called}",
            "attention": "per-request (in place, a call for each sequence)" if self._apart else "fused (in place)",
            "dtype": "bfloat16",
            "threads": f"{self._pool.threads}{', pinned' if self._pool.pinned else ''}",
            "weights": f"{weights.bytes / 2**20:.1f} MiB as {weights.describe()} (file: {kinds})",
        }

    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        batch = self._batch
        rows, tokens, sampled, wanted = _rows(plan)
        opened = _opened(plan.opened)
        moves = (CMove * len(view.moves))(*(CMove(move.source, move.target, move.tokens) for move in view.moves))
        logits = np.empty((wanted, self._vocab), np.float32) if self.keep_logits and wanted else None
        batch.rows, batch.row_count = rows.buffer_info()[0], len(plan.rows)
        batch.tokens, batch.token_count = tokens.buffer_info()
        batch.opened, batch.opened_count = ctypes.addressof(opened), len(opened)
        batch.moves, batch.move_count = ctypes.addressof(moves), len(moves)
        batch.logits = None if logits is None else logits.ctypes.data
        self._look_at(view)
        if self._eager:
            launches, attention_launches = self._run_operations(len(plan.rows))
        elif self._apart:
            launches, attention_launches = self._run_pieces(len(plan.rows))
        else:
            launches, attention_launches = self._run_step()
        times = self._times
        busy_s, total_s, sample_s = times.busy_s, times.total_s, times.sample_s
        self.utilisation = busy_s / (total_s * self.threads)
        return StepResult(
            self._sampled[:sampled].copy(),
            total_s - sample_s,
            sample_s,
            launches,
            logits,
            attention_launches=attention_launches,
            attention_s=times.attention_s,
            kv_read_bytes=times.kv_read_bytes,
            busy_s=busy_s,
        )

    def operation_seconds(self) -> dict[str, float]:
        """Seconds that each operation of the last step took, summed over operations of one label."""
        spent = np.empty(self._program.op_count, np.float64)
        self._library.op_ticks(self._program.handle, spent.ctypes.data)
        found: dict[str, float] = {}
        for label, ticks in zip(self._program.labels, spent.tolist(), strict=True):
            found[label] = found.get(label, 0.0) + ticks / self._times.ticks_per_s
        return found

    # Each returns its launches, and how many of them are attention alone.

    def _run_step(self) -> tuple[int, int]:
        library = self._library
        library.check(library.step(self._program.handle, ctypes.byref(self._batch), ctypes.byref(self._times)))
        return 1, 0

    def _run_operations(self, rows: int) -> tuple[int, int]:
        library, handle, items, attentions = self._library, self._program.handle, self._items, self._attentions
        library.check(library.step_begin(handle, ctypes.byref(self._batch)))
        library.step_items(handle, items.ctypes.data)
        items[self._continued] = 0
        launches = attention_launches = 0
        for op in items.nonzero()[0].tolist():
            if op not in attentions:
                library.step_run(handle, op, 1)
                launches += 1
            elif self._apart:
                attention_launches += self._attend_apart(op, rows)
            else:
                library.step_run(handle, op, attentions[op])
                attention_launches += 1
        library.step_end(handle, ctypes.byref(self._times))
        return launches + attention_launches, attention_launches

    def _run_pieces(self, rows: int) -> tuple[int, int]:
        """As piecewise graphs do on a GPU: all that lies between two attentions at once."""
        library, handle = self._library, self._program.handle
        library.check(library.step_begin(handle, ctypes.byref(self._batch)))
        attention_launches = 0
        for first, end in self._pieces:
            library.step_run(handle, first, end - first)
            if end in self._attentions:
                attention_launches += self._attend_apart(end, rows)
        library.step_end(handle, ctypes.byref(self._times))
        return len(self._pieces) + attention_launches, attention_launches

    def _attend_apart(self, op: int, rows: int) -> int:
        attend, handle = self._library.step_attend, self._program.handle
        for row in range(rows):
            attend(handle, op, row)
        return rows

    def _look_at(self, view: KVView) -> None:
        batch = self._batch
        if self._arena is not view.arena:
            spec = view.arena.spec
            if spec.dtype != self._kv_dtype:
                raise ConfigError(f"the KV cache's dtype is {spec.dtype}: {self._kv_dtype} is accepted, that of the runner.")
            batch.arena = np.frombuffer(view.arena.memory, np.uint8).ctypes.data
            batch.arena_tokens = view.arena.tokens
            self._arena = view.arena
        if self._table is not view.table:
            batch.table, batch.run = _address(view.table), _address(view.run)
            batch.table_width = view.table.shape[1]
            self._table = view.table


def _address(values: npt.NDArray[np.int32]) -> int:
    if values.dtype != np.int32 or not values.flags.c_contiguous:
        raise ValueError("tables of a KV view are int32 and lie in one piece.")
    return int(values.ctypes.data)


def _rows(plan: StepPlan) -> tuple[array[int], array[int], int, int]:
    """The rows as the library reads them, the token ids that they refer to, how many sample, how many logits they want."""
    rows: list[int] = []
    tokens: array[int] = array("i")
    sampled = wanted = 0
    for row in plan.rows:
        rows += (row.slot, row.start, row.length, row.logits, -1 if row.tokens is None else len(tokens))
        if row.tokens is not None:
            tokens.extend(row.tokens)
        if row.logits:
            sampled += 1
            wanted += row.length if row.logits is Logits.ALL else 1
    return array("i", rows), tokens, sampled, wanted


def _opened(opened: tuple[SlotSampling, ...]) -> ctypes.Array[COpened]:
    found = (COpened * len(opened))()
    for one, new in zip(found, opened, strict=True):
        one.slot, one.top_k, one.temperature, one.top_p = new.slot, new.top_k, new.temperature, new.top_p
        one.seed, one.drawn = new.seed & MASK64, new.drawn
    return found
