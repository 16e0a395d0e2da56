"""TorchRunner: interprets a program with torch, on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.attention.batch import Batch
from octavo.attention.gather import GatherAttention
from octavo.attention.path import AttentionPath
from octavo.attention.per_request import PerRequestAttention
from octavo.errors import ConfigError
from octavo.kv.view import KVView, Move
from octavo.models.checkpoint import Checkpoint
from octavo.models.program import (
    Attention,
    Embed,
    GatedActivation,
    Head,
    Linear,
    Norm,
    Op,
    Program,
    RotateAndStore,
    SelectRows,
)
from octavo.runner.allocator import keep_freed_memory
from octavo.runner.base import Runner, StepResult
from octavo.runner.fused import FusedAttention
from octavo.runner.launches import Launches
from octavo.runner.sampler import Int64s, Sampler
from octavo.runner.weights import TORCH_DTYPES, load, pair_order, product, rows_of
from octavo.scheduler.plan import Logits, Row, StepPlan

PATHS: dict[str, type[AttentionPath]] = {p.name: p for p in (FusedAttention, GatherAttention, PerRequestAttention)}


@dataclass(slots=True)
class _Step:
    """What the operations of one step read and write."""

    batch: Batch
    token_ids: Int64s  # [tokens]
    targets: Tensor  # int64 [tokens]: where keys and values go
    rotation: Tensor  # complex64 [tokens, 1, rope dim / 2]
    cache: Tensor  # compute dtype [layers, 2, arena tokens, kv_heads * dim]
    selected: Tensor  # int64: tokens whose logits are wanted
    buffers: dict[str, Tensor]
    logits: Tensor | None = None


Operation = Callable[[_Step], None]


class TorchRunner(Runner):
    """Computes in ``dtype``, with the residual stream, norms' sums, rotations and the softmax in float32.

    dtype:     "float32", "bfloat16" or "float16"; also that of the KV arena.
    attention: "fused", "gather" or "per-request".
    threads:   torch's compute threads (a setting of the whole process).
    max_batched_tokens: most tokens of a step. Torch takes memory step by step, so nothing is reserved for it.
    keep_logits: set it to get ``StepResult.logits``: those of every row that wants any, in the plan's order.

    One token is sampled for each row with ``Logits.LAST`` or ``Logits.ALL``, from its last position. Memory: the weights once, in
    ``dtype``; activations of one step; one layer's keys and values of a group of sequences.
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
    ):
        if dtype not in TORCH_DTYPES:
            raise ConfigError(f"dtype is {dtype}: {', '.join(TORCH_DTYPES)} are accepted.")
        if attention not in PATHS:
            raise ConfigError(f"attention is {attention}: {', '.join(PATHS)} are accepted.")
        torch.set_num_threads(threads)
        keep_freed_memory()
        self.keep_logits = False
        self._config = config = program.config
        self._dtype = TORCH_DTYPES[dtype]
        self.threads = threads
        self._launches = launches = Launches()
        self._path = PATHS[attention](config.heads, config.kv_heads, config.head_dim, self._dtype, launches)
        self._sampler = Sampler(slots, launches)
        self._rotations = _rotations(config.rope.inverse_frequencies(), max_model_len)
        self._checkpoint = checkpoint
        self._weight_bytes = 0
        self._products: set[str] = set()
        self._rotated = _feeding_rotations(program)
        with torch.inference_mode():
            self._operations = [self._bind(op) for op in program.ops]
        self._arena: object = None
        self._cache = torch.empty(0)
        self._kinds = checkpoint.weight_kinds()
        checkpoint.drop_pages()
        del self._checkpoint

    def describe(self) -> dict[str, str]:
        name = str(self._dtype).removeprefix("torch.")
        kinds = ", ".join(f"{count} {kind}" for kind, count in self._kinds.items())
        return {
            "runner": f"torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()})",
            "attention": self._path.describe(),
            "dtype": name,
            "threads": str(self.threads),
            "weights": f"{self._weight_bytes / 2**20:.1f} MiB as {name} (file: {kinds}; {' and '.join(sorted(self._products))})",
        }

    @torch.inference_mode()
    def execute(self, plan: StepPlan, view: KVView) -> StepResult:
        self._launches.count = 0
        self._sampler.open(plan.opened)
        cache = self._view_arena(view)
        moving = self._move(cache, view.moves) if view.moves else 0.0
        if not plan.rows:
            return StepResult(np.empty(0, np.int32), moving, 0.0, self._launches.count)
        batch = Batch.of(plan.rows, view)
        selected, sampled, slots = _selection(plan.rows, batch)
        step = _Step(
            batch,
            self._token_ids(plan.rows, batch),
            torch.from_numpy(batch.targets),
            self._launches(self._rotations.index_select(0, torch.from_numpy(batch.positions))),
            cache,
            torch.from_numpy(selected),
            {},
        )
        self._path.begin(batch)
        begin = time.perf_counter()  # what came before, but for moves, is launching: putting the inputs together
        for operation in self._operations:
            operation(step)
        computed = time.perf_counter()
        tokens = np.empty(0, np.int32)
        logits = step.logits
        if len(slots) and logits is not None:
            rows = logits if len(sampled) == len(logits) else self._launches(logits[torch.from_numpy(sampled)])
            tokens = self._sampler.sample(slots, rows)
        return StepResult(
            tokens,
            moving + computed - begin,
            time.perf_counter() - computed,
            self._launches.count,
            logits.numpy() if self.keep_logits and logits is not None else None,
            attention_launches=self._path.attention_launches,
            attention_s=self._path.attention_s,
            kv_read_bytes=self._path.kv_read_bytes,
            gather_s=self._path.gather_s,
            gather_bytes=self._path.gather_bytes,
        )

    def _move(self, cache: Tensor, moves: tuple[Move, ...]) -> float:
        """Carry out the moves; the seconds it took."""
        begin = time.perf_counter()
        for move in moves:
            source = cache[:, :, move.source : move.source + move.tokens]
            target = cache[:, :, move.target : move.target + move.tokens]
            # A compaction may slide a run onto itself.
            overlap = abs(move.source - move.target) < move.tokens
            self._launches(target.copy_(self._launches(source.clone()) if overlap else source))
        return time.perf_counter() - begin

    def _view_arena(self, view: KVView) -> Tensor:
        """The arena as ``[layers, 2, tokens, kv_heads * dim]`` of the compute dtype, not copied."""
        if self._arena is not view.arena:
            spec = view.arena.spec
            if TORCH_DTYPES[spec.dtype] != self._dtype:
                raise ConfigError(f"the KV cache's dtype is {spec.dtype}: {self._dtype} is accepted, that of the runner.")
            flat = torch.frombuffer(view.arena.memory, dtype=self._dtype, count=view.arena.bytes // self._dtype.itemsize)
            self._cache = flat.view(spec.layers, 2, view.arena.tokens, spec.kv_heads * spec.head_dim)
            self._arena = view.arena
        return self._cache

    def _token_ids(self, rows: tuple[Row, ...], batch: Batch) -> Int64s:
        """Token ids in the batch's order."""
        ids = np.empty(batch.tokens, np.int64)
        for i, (begin, end) in enumerate(zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True)):
            tokens = rows[batch.order[i]].tokens
            ids[begin:end] = self._sampler.last[batch.slots[i]] if tokens is None else tokens
        return ids

    # One method for each kind of operation: it looks up weights once and returns what a step does.

    def _bind(self, op: Op) -> Operation:
        method = getattr(self, f"_{type(op).__name__.lower()}", None)
        if method is None:
            raise ConfigError(f"the torch runner does not know the operation {type(op).__name__}.")
        operation: Operation = method(op)
        return operation

    def _embed(self, op: Embed) -> Operation:
        # Rows are read from the mapped file: the head often has the same weight, but in packed form, which has no rows to look
        # up, and a weight is held once.
        weight, launches = self._checkpoint.tensor(op.weight), self._launches

        def run(step: _Step) -> None:
            rows = rows_of(weight, step.token_ids)
            step.buffers[op.out] = rows if op.scale == 1.0 else launches(rows.mul_(op.scale))

        return run

    def _norm(self, op: Norm) -> Operation:
        launches, rms_norm = self._launches, torch.nn.functional.rms_norm
        weight = self._tensor(op.weight)
        delta_weight = self._tensor(op.delta_weight) if op.delta_weight else None
        shape = list(weight.shape)

        def run(step: _Step) -> None:
            residual = step.buffers[op.residual]
            if op.delta is not None:
                delta = step.buffers[op.delta]
                if delta_weight is not None:
                    delta = delta if delta.dtype == torch.float32 else launches(delta.to(torch.float32))
                    delta = launches(rms_norm(delta, shape, delta_weight, op.eps))
                launches(residual.add_(delta))
            out = launches(rms_norm(residual, shape, weight, op.eps))
            step.buffers[op.out] = out if out.dtype == self._dtype else launches(out.to(self._dtype))

        return run

    def _linear(self, op: Linear) -> Operation:
        weight = load(self._checkpoint, op.weights, self._dtype)
        bias = load(self._checkpoint, op.biases, self._dtype) if op.biases else None
        if id(op) in self._rotated:
            order = self._pair_order()
            weight, bias = weight[order], None if bias is None else bias[order]
        multiply, launches = self._multiplication(weight, bias), self._launches

        def run(step: _Step) -> None:
            step.buffers[op.out] = launches(multiply(step.buffers[op.x]))

        return run

    def _rotateandstore(self, op: RotateAndStore) -> Operation:
        config, launches, rms_norm = self._config, self._launches, torch.nn.functional.rms_norm
        heads, both, dim, rotated = config.heads, config.heads + config.kv_heads, config.head_dim, config.rope.dim
        order = pair_order(1, dim, rotated)
        q_norm = self._tensor(op.q_norm)[order] if op.q_norm else None
        k_norm = self._tensor(op.k_norm)[order] if op.k_norm else None

        def run(step: _Step) -> None:
            qkv = step.buffers[op.qkv].view(-1, both + config.kv_heads, dim)
            qk = qkv[:, :both]
            if qk.dtype != torch.float32:
                qk = launches(qk.to(torch.float32))
            if q_norm is not None:
                launches(qk[:, :heads].copy_(launches(rms_norm(qk[:, :heads], [dim], q_norm, op.eps))))
            if k_norm is not None:
                launches(qk[:, heads:].copy_(launches(rms_norm(qk[:, heads:], [dim], k_norm, op.eps))))
            pairs = torch.view_as_complex(qk[..., :rotated].view(-1, both, rotated // 2, 2))
            launches(pairs.mul_(step.rotation))
            q = torch.empty(len(qk), heads, dim, dtype=qkv.dtype)
            step.buffers[op.q] = launches(q.copy_(qk[:, :heads]))
            if qk.dtype != qkv.dtype:
                launches(qkv[:, heads:both].copy_(qk[:, heads:]))
            kv = qkv[:, heads:].view(len(qkv), 2, -1).transpose(0, 1)
            launches(step.cache[op.layer].index_copy_(1, step.targets, kv))

        return run

    def _attention(self, op: Attention) -> Operation:
        width = self._config.heads * self._config.head_dim

        def run(step: _Step) -> None:
            q = step.buffers[op.q]
            out = step.buffers[op.out] = torch.empty(q.shape[0], width, dtype=self._dtype)
            self._path.attend(op, q, step.cache[op.layer], out)

        return run

    def _gatedactivation(self, op: GatedActivation) -> Operation:
        launches = self._launches
        activations: dict[str, Callable[[Tensor], Tensor]] = {
            "silu": torch.nn.functional.silu,
            "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
        }
        if op.activation not in activations:
            raise ConfigError(f"the activation is {op.activation}: {', '.join(activations)} are accepted.")
        activation = activations[op.activation]

        def run(step: _Step) -> None:
            gate, up = step.buffers[op.x].chunk(2, -1)
            step.buffers[op.out] = launches(launches(activation(gate)).mul_(up))

        return run

    def _selectrows(self, op: SelectRows) -> Operation:
        launches = self._launches

        def run(step: _Step) -> None:
            for name in op.buffers:
                step.buffers[name] = launches(step.buffers[name].index_select(0, step.selected))

        return run

    def _head(self, op: Head) -> Operation:
        launches = self._launches
        multiply = self._multiplication(load(self._checkpoint, (op.weight,), self._dtype), None)

        def run(step: _Step) -> None:
            if not len(step.selected):
                return
            logits = launches(multiply(step.buffers[op.x]))
            logits = logits if logits.dtype == torch.float32 else launches(logits.to(torch.float32))
            if op.softcap:
                launches(logits.div_(op.softcap))
                launches(logits.tanh_())
                launches(logits.mul_(op.softcap))
            step.logits = logits

        return run

    def _tensor(self, name: str) -> Tensor:
        """A norm's weight, in float32."""
        weight = load(self._checkpoint, (name,), torch.float32)
        self._weight_bytes += weight.nbytes
        return weight

    def _multiplication(self, weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        multiply, how = product(weight, bias)
        self._weight_bytes += weight.nbytes + (0 if bias is None else bias.nbytes)
        self._products.add(how)
        return multiply

    def _pair_order(self) -> Tensor:
        """The order of a query-key-value product's rows in which what is rotated together lies side by side."""
        config = self._config
        rotated = pair_order(config.heads + config.kv_heads, config.head_dim, config.rope.dim)
        values = torch.arange(len(rotated), len(rotated) + config.kv_heads * config.head_dim)
        return torch.cat((rotated, values))


def _feeding_rotations(program: Program) -> set[int]:
    """The products, by identity, whose output a RotateAndStore reads."""
    writers: dict[str, Op] = {}
    found = set()
    for op in program.ops:
        if isinstance(op, RotateAndStore):
            found.add(id(writers[op.qkv]))
        elif isinstance(op, Linear):
            writers[op.out] = op
    return found


def _rotations(frequencies: list[float], length: int) -> Tensor:
    """cos + i sin of each position's angles: complex64 ``[length, 1, rope dim / 2]``, the angles computed in float64."""
    angles = np.outer(np.arange(length, dtype=np.float64), np.array(frequencies, np.float64))
    return torch.from_numpy(np.exp(1j * angles).astype(np.complex64))[:, None]


def _selection(rows: tuple[Row, ...], batch: Batch) -> tuple[Int64s, Int64s, Int64s]:
    """In the plan's order: the tokens whose logits are wanted, which of those are sampled from, and the slots of these."""
    wants = np.array([row.logits for row in rows], np.int64)
    begins = np.empty(len(rows), np.int64)
    begins[batch.order] = batch.offsets[:-1]
    lengths = np.array([row.length for row in rows], np.int64)
    slots = np.array([row.slot for row in rows], np.int64)
    counts = np.where(wants == Logits.ALL, lengths, wants == Logits.LAST)
    ends = np.cumsum(counts)
    tokens = np.arange(ends[-1]) + np.repeat(begins + lengths - ends, counts)
    wanted = counts > 0
    return tokens, ends[wanted] - 1, slots[wanted]
