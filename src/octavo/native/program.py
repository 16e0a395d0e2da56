"""StepProgram: a decoder's program, recorded once into the native library, which then runs it in one call a step."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from octavo.errors import ConfigError
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
from octavo.native.library import CAttentionShape, CProgramSpec, CWeight, Epilogue, Format, Library
from octavo.native.pool import Pool
from octavo.native.weights import Matrix, PackedWeights, packed_kind, stacked

KV_KINDS = {"bfloat16": 0, "int8": 1}
EPILOGUES = {"silu": Epilogue.SILU, "gelu_tanh": Epilogue.GELU}
NONE = -1  # no buffer


@dataclass(frozen=True, slots=True)
class Product:
    """Part of a linear operation: weights of one element type. ``column``: where its results go in the output's rows."""

    matrix: Matrix
    biases: tuple[str, ...]
    quantized: bool
    column: int


class StepProgram:
    """The operations of ``program`` in the library's list, with their weights packed and their buffers made.

    Several operations become one where the library has them fused: a linear layer adds into the residual stream, gate and up
    projections apply the activation. Rows whose logits are not wanted are left out after the last attention.
    """

    def __init__(
        self,
        library: Library,
        pool: Pool,
        program: Program,
        checkpoint: Checkpoint,
        *,
        kv_dtype: str,
        slots: int,
        max_model_len: int,
        max_batched_tokens: int,
        widen: bool = False,
    ):
        config = program.config
        self.library = library
        self._pool = pool  # alive as long as this
        self._program = program
        self._checkpoint = checkpoint
        self._kinds = {name: packed_kind(checkpoint.tensor(name).kind, widen) for name in _matrices(program)}
        self._ops = select_early(program.ops)
        self._products = {i: self._split(op) for i, op in enumerate(self._ops) if isinstance(op, Linear)}
        # By the linear operation that does another one's work: which one.
        self._gates = {i: gate for i in self._products if (gate := self._gate_of(i)) is not None}
        self._additions = {i: norm for i in self._products if (norm := self._addition_of(i)) is not None}
        self.weights = PackedWeights(library, pool, checkpoint, self._all_matrices(), widen)
        self._vectors: list[npt.NDArray[np.float32]] = []  # biases and norms, which the library refers to
        self._buffers: dict[tuple[str, Format], int] = {}
        spec = CProgramSpec(
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            rotary_dim=config.rope.dim,
            layers=config.layers,
            vocabulary=config.vocab,
            slots=slots,
            max_tokens=max_batched_tokens,
            max_positions=max_model_len,
            kv_kind=KV_KINDS[kv_dtype],
            turns=self._turns(max_model_len),
        )
        self.handle = library.program_new(pool.handle, ctypes.byref(spec))
        weakref.finalize(self, library.program_free, self.handle)
        self.labels = ["moves"]
        self.attentions: list[range] = []  # the operations of the library's list that each attention consists of
        self._record()
        del self._checkpoint

    @property
    def op_count(self) -> int:
        """Operations of the library's list; ``labels`` names them."""
        return len(self.labels)

    # ---- what is packed

    def _split(self, op: Linear) -> list[Product]:
        """The operation's weights, in order, grouped where neighbours have one element type."""
        products: list[Product] = []
        column = 0
        for i, name in enumerate(op.weights):
            kind, bias = self._kinds[name], op.biases[i : i + 1]
            rows = self._checkpoint.tensor(name).shape[0]
            last = products[-1] if products else None
            if last is not None and self._kinds[last.matrix.names[0]] == kind:
                products[-1] = replace(last, matrix=Matrix((*last.matrix.names, name)), biases=(*last.biases, *bias))
            else:
                products.append(Product(Matrix((name,)), bias, kind != "BF16", column))
            column += rows
        return products

    def _all_matrices(self) -> Iterable[Matrix]:
        for i, op in enumerate(self._ops):
            match op:
                case Embed(weight=weight) | Head(weight=weight):
                    yield Matrix((weight,))
                case Linear() if i in self._gates:
                    yield replace(self._products[i][0].matrix, gated=True)
                case Linear():
                    yield from (product.matrix for product in self._products[i])

    # ---- what follows an operation

    def _readers(self, index: int, buffer: str) -> list[int]:
        """The operations that read what operation ``index`` leaves in ``buffer``."""
        found = []
        for i in range(index + 1, len(self._ops)):
            if buffer in _reads(self._ops[i]):
                found.append(i)
            if buffer in _writes(self._ops[i]):
                break
        return found

    def _gate_of(self, index: int) -> int | None:
        """The activation that a linear operation can apply itself: gate and up of one element type, and one reader."""
        op = self._ops[index]
        assert isinstance(op, Linear)
        readers = self._readers(index, op.out)
        if len(op.weights) != 2 or len(self._products[index]) != 1 or len(readers) != 1:
            return None
        gate = self._ops[readers[0]]
        return readers[0] if isinstance(gate, GatedActivation) and not all(self._formats(readers[0], gate.out)) else None

    def _addition_of(self, index: int) -> int | None:
        """The norm that would only add a linear operation's result to the residual stream, which the operation can do itself."""
        op = self._ops[index]
        assert isinstance(op, Linear)
        readers = self._readers(index, op.out)
        norm = self._ops[readers[0]] if len(readers) == 1 else None
        return readers[0] if isinstance(norm, Norm) and norm.delta == op.out and norm.delta_weight is None else None

    def _formats(self, index: int, buffer: str) -> tuple[bool, bool]:
        """Whether readers of ``buffer`` want it as bfloat16, and as int8 blocks: what their weights are multiplied with."""
        plain = blocks = False
        for i in self._readers(index, buffer):
            match self._ops[i]:
                case Linear():
                    kinds = [product.quantized for product in self._products[i]]
                    plain, blocks = plain or not all(kinds), blocks or any(kinds)
                case Head(weight=weight):
                    plain, blocks = plain or self._kinds[weight] == "BF16", blocks or self._kinds[weight] != "BF16"
                case SelectRows():
                    after = self._formats(i, buffer)
                    plain, blocks = plain or after[0], blocks or after[1]
        return plain, blocks

    # ---- recording

    def _record(self) -> None:
        self._selected = ""  # appended to the names of buffers once they hold selected rows only
        for index, op in enumerate(self._ops):
            getattr(self, f"_{type(op).__name__.lower()}")(index, op)

    def _call(self, label: str, function: str, *arguments: object) -> None:
        """Add an operation, or several, to the library's list."""
        self.library.check(getattr(self.library, f"program_{function}")(self.handle, *arguments))
        self.labels += [label] * (self.library.program_ops(self.handle) - len(self.labels))

    def _buffer(self, name: str, form: Format, wanted: bool = True) -> int:
        """The number of a buffer in this form, made when it is asked for first."""
        if not wanted:
            return NONE
        key = (name + self._selected, form)
        if key not in self._buffers:
            self._buffers[key] = self.library.program_buffer(self.handle, self._program.buffers[name], form)
        return self._buffers[key]

    def _vector(self, *names: str | None) -> int:
        """The address of one-dimensional weights in float32, or 0."""
        known = [name for name in names if name]
        return self._keep(stacked(self._checkpoint, known)) if known else 0

    def _keep(self, vector: npt.NDArray[np.float32]) -> int:
        self._vectors.append(vector)
        return int(vector.ctypes.data)

    def _bias(self, weight: CWeight, names: Sequence[str]) -> int:
        if not names:
            return 0
        stated = stacked(self._checkpoint, names)
        packed = np.empty(32 * self.library.weight_panels(ctypes.byref(weight)), np.float32)
        self.library.pack_bias(ctypes.byref(weight), stated.ctypes.data, packed.ctypes.data)
        return self._keep(packed)

    def _turns(self, positions: int) -> int:
        """Cosines and sines of every position's angles."""
        frequencies = np.array(self._program.config.rope.inverse_frequencies(), np.float64)
        turns = np.empty((positions, 2 * len(frequencies)), np.float32)
        self.library.rope_turns(frequencies.ctypes.data, 2 * len(frequencies), positions, turns.ctypes.data)
        return self._keep(turns)

    # One method for each kind of operation.

    def _embed(self, _: int, op: Embed) -> None:
        weight = self.weights[Matrix((op.weight,))]
        self._call("embed", "embed", ctypes.byref(weight), op.scale, self._buffer(op.out, Format.FLOAT32))

    def _norm(self, index: int, op: Norm) -> None:
        delta = NONE
        if op.delta is not None and index not in self._additions.values():
            delta = self._buffer(op.delta, Format.FLOAT32)
        plain, blocks = self._formats(index, op.out)
        self._call(
            op.weight, "norm", self._buffer(op.residual, Format.FLOAT32), delta, self._vector(op.delta_weight),
            self._vector(op.weight), op.eps, self._buffer(op.out, Format.BF16, plain),
            self._buffer(op.out, Format.BLOCKS, blocks),
        )  # fmt: skip

    def _linear(self, index: int, op: Linear) -> None:
        out, epilogue = self._target(index, op)
        for product in self._products[index]:
            weight = self.weights[replace(product.matrix, gated=index in self._gates)]
            x = self._buffer(op.x, Format.BLOCKS if product.quantized else Format.BF16)
            self._call(
                "+".join(product.matrix.names), "linear", ctypes.byref(weight), self._bias(weight, product.biases), x, out,
                product.column, epilogue,
            )  # fmt: skip

    def _target(self, index: int, op: Linear) -> tuple[int, Epilogue]:
        """The buffer that a linear operation writes, and what it does on the way."""
        if index in self._gates:
            at = self._gates[index]
            gate = self._ops[at]
            assert isinstance(gate, GatedActivation)
            _, blocks = self._formats(at, gate.out)
            return self._buffer(gate.out, Format.BLOCKS if blocks else Format.BF16), EPILOGUES[gate.activation]
        if index in self._additions:
            norm = self._ops[self._additions[index]]
            assert isinstance(norm, Norm)
            return self._buffer(norm.residual, Format.FLOAT32), Epilogue.ADD
        return self._buffer(op.out, Format.FLOAT32), Epilogue.STORE

    def _rotateandstore(self, _: int, op: RotateAndStore) -> None:
        self._call(
            f"layers.{op.layer}.rope", "rope", op.layer, self._buffer(op.qkv, Format.FLOAT32), self._buffer(op.q, Format.BF16),
            self._vector(op.q_norm), self._vector(op.k_norm), op.eps,
        )  # fmt: skip

    def _attention(self, index: int, op: Attention) -> None:
        out = self._buffer(op.out, Format.BF16)
        first = len(self.labels)
        self._call(
            f"layers.{op.layer}.attention", "attention", op.layer, self._buffer(op.q, Format.BF16), out, op.scale, op.window or 0,
            op.softcap,
        )  # fmt: skip
        self.attentions.append(range(first, len(self.labels)))
        if self._formats(index, op.out)[1]:
            self._call(f"layers.{op.layer}.quantize", "quantize", out, self._buffer(op.out, Format.BLOCKS))

    def _gatedactivation(self, index: int, op: GatedActivation) -> None:
        if op.activation not in EPILOGUES:
            raise ConfigError(f"the activation is {op.activation}: {', '.join(EPILOGUES)} are accepted.")
        if index in self._gates.values():
            return
        plain, blocks = self._formats(index, op.out)
        self._call(
            "activation", "gate", self._buffer(op.x, Format.FLOAT32), EPILOGUES[op.activation],
            self._buffer(op.out, Format.BF16, plain), self._buffer(op.out, Format.BLOCKS, blocks),
        )  # fmt: skip

    def _selectrows(self, index: int, op: SelectRows) -> None:
        sources = []
        for name in op.buffers:
            plain, blocks = self._formats(index, name)
            forms = [Format.FLOAT32, *[Format.BF16] * plain, *[Format.BLOCKS] * blocks]
            sources += [(name, form, self._buffers[name, form]) for form in forms if (name, form) in self._buffers]
        self._selected = " selected"
        for name, form, source in sources:
            self._call("select", "select", source, self._buffer(name, form))

    def _head(self, _: int, op: Head) -> None:
        quantized = self._kinds[op.weight] != "BF16"
        x = self._buffer(op.x, Format.BLOCKS if quantized else Format.BF16)
        self._call("head", "head", ctypes.byref(self.weights[Matrix((op.weight,))]), x, op.softcap)


def unsupported(library: Library, program: Program, kv_dtype: str = "bfloat16") -> str | None:
    """Why the library cannot compute this model, as part of a sentence; None where it can."""
    config = program.config
    shape = CAttentionShape(config.heads, config.kv_heads, config.head_dim, KV_KINDS[kv_dtype])
    error: bytes | None = library.attention_error(ctypes.byref(shape))
    if error is not None:
        return error.decode().removesuffix(".")
    if config.activation not in EPILOGUES:
        return f"the native runner does not have the activation {config.activation}"
    return None


def select_early(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The same operations with the selection of rows right after the last one that mixes rows, so that what follows computes
    those rows only whose logits are wanted."""
    (select,) = [i for i, op in enumerate(ops) if isinstance(op, SelectRows)]
    mixing = max(i for i, op in enumerate(ops) if isinstance(op, Attention))
    live: dict[str, None] = {}
    written: set[str] = set()
    for op in (*ops[mixing + 1 : select], *ops[select + 1 :]):
        live |= dict.fromkeys(name for name in _reads(op) if name not in written)
        written |= set(_writes(op))
    return (*ops[: mixing + 1], SelectRows(tuple(live)), *ops[mixing + 1 : select], *ops[select + 1 :])


def _matrices(program: Program) -> Iterable[str]:
    for op in program.ops:
        match op:
            case Embed(weight=weight) | Head(weight=weight):
                yield weight
            case Linear(weights=weights):
                yield from weights


def _reads(op: Op) -> tuple[str, ...]:
    match op:
        case Norm(residual=residual, delta=delta):
            return (residual,) if delta is None else (residual, delta)
        case Linear(x=x) | GatedActivation(x=x) | Head(x=x):
            return (x,)
        case RotateAndStore(qkv=qkv):
            return (qkv,)
        case Attention(q=q):
            return (q,)
        case SelectRows(buffers=buffers):
            return buffers
    return ()


def _writes(op: Op) -> tuple[str, ...]:
    match op:
        case Norm(residual=residual, out=out):
            return (residual, out)
        case RotateAndStore(q=q):
            return (q,)
        case Embed(out=out) | Linear(out=out) | Attention(out=out) | GatedActivation(out=out):
            return (out,)
        case SelectRows(buffers=buffers):
            return buffers
    return ()
