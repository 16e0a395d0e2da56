"""AttentionPath: one way to compute attention over the KV cache with torch. What the ways share is here."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.attention.batch import Batch, Group, first_keys
from octavo.attention.dense import batched
from octavo.models.program import Attention
from octavo.runner.launches import Launches

QUERY_CHUNK = 256  # queries of one sequence in one launch: bounds the mask, and skips most of what a causal mask would hide
EXPLICIT_CHUNK = 64  # the same where scores are held in memory


@dataclass(frozen=True, slots=True)
class Piece:
    """One launch of dense attention: the queries ``q`` of every row of a group over its keys ``k``, under an additive mask."""

    q: slice
    k: slice
    mask: Tensor


class Prepared:
    """A group with its indices and masks as tensors, ready for every layer of the step."""

    def __init__(self, group: Group, op: Attention, dtype: torch.dtype, kv_heads: int, launches: Launches):
        self.group = group
        self.chunked = group.rows == 1 and group.queries > 1
        self.flash = self.chunked and not op.softcap
        self.run_start = group.run_start()
        self.query_indices = self.padded_indices = None
        if group.padded:
            self.query_indices = torch.from_numpy(group.query_indices().reshape(-1))
            self.padded_indices = torch.from_numpy(group.padded_indices())
        self._kv_heads = kv_heads
        self._key_indices: Tensor | None = None
        mask_dtype = dtype if self.flash else torch.float32
        self.pieces = list((self._chunks if self.chunked else self._whole)(op.window, mask_dtype, launches))

    def key_indices(self) -> Tensor:
        """int64 ``[2 * rows * kv_heads * keys]``: which heads of which tokens to collect, keys first, as indices into a layer's
        cache seen as ``[2 * tokens * kv_heads, dim]``."""
        if self._key_indices is None:
            heads, cached = self._kv_heads, self.group.batch.view.arena.tokens
            first = np.arange(2)[:, None] * (cached * heads) + np.arange(heads)
            indices = first[:, None, :, None] + (self.group.key_indices() * heads)[None, :, None, :]
            self._key_indices = torch.from_numpy(indices.reshape(-1))
        return self._key_indices

    def _whole(self, window: int | None, dtype: torch.dtype, launches: Launches) -> Iterator[Piece]:
        mask = _additive(self.group.visible(window), dtype, launches)
        yield Piece(slice(0, self.group.queries), slice(0, self.group.keys), mask[:, None, None])

    def _chunks(self, window: int | None, dtype: torch.dtype, launches: Launches) -> Iterator[Piece]:
        """Chunks end at the last key that their last query sees, so one mask aligned to that corner serves them all."""
        group = self.group
        chunk = min(QUERY_CHUNK if self.flash else EXPLICIT_CHUNK, group.queries)
        cached = group.keys - group.queries
        width = min(group.keys, group.keys if window is None else window + chunk - 1)
        behind = np.arange(chunk)[:, None] - (chunk - 1) - (np.arange(width) - (width - 1))  # how far a key lies before a query
        seen = behind >= 0
        if window is not None:
            seen &= behind < window
        corner = _additive(seen, dtype, launches)
        for first in range(0, group.queries, chunk):
            last = min(first + chunk, group.queries)
            end = cached + last
            begin = 0 if window is None else max(0, cached + first - window + 1)
            mask = corner[chunk - (last - first) :, width - (end - begin) :]
            yield Piece(slice(first, last), slice(begin, end), mask)


def _additive(seen: npt.NDArray[np.bool_], dtype: torch.dtype, launches: Launches) -> Tensor:
    """0 where a key is seen, minus infinity where it is not."""
    mask = launches(torch.zeros(seen.shape, dtype=dtype))
    return launches(mask.masked_fill_(torch.from_numpy(~seen), -torch.inf))


class AttentionPath(ABC):
    """Computes ``Attention`` operations of one model. ``begin`` is called once per step, ``attend`` for each layer.

    ``name`` is the setting that chooses the path. A path differs from the others in how it groups rows and how it brings their
    keys and values together; the arithmetic is the same.

    Since ``begin``: attention_launches and attention_s of all calls of ``attend``; kv_read_bytes, gather_s and gather_bytes as in
    ``StepRecord``.
    """

    name: str

    def __init__(self, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, launches: Launches):
        self.heads, self.kv_heads, self.head_dim, self.dtype = heads, kv_heads, head_dim, dtype
        self.launches = launches
        self._prepared: dict[tuple[int | None, bool], list[Prepared]] = {}
        self._batch: Batch | None = None
        self._spaces: dict[str, Tensor] = {}
        self._keys: dict[int | None, int] = {}  # by window: how many of all rows' keys are seen by some query
        self.attention_launches = self.kv_read_bytes = self.gather_bytes = 0
        self.attention_s = self.gather_s = 0.0

    @abstractmethod
    def describe(self) -> str:
        """The path's name, and what it copies."""

    @abstractmethod
    def groups(self, batch: Batch, window: int | None) -> Iterator[Group]:
        """The rows that are computed together."""

    @abstractmethod
    def collect(self, prepared: Prepared, cache: Tensor, out: Tensor) -> None:
        """Copy the group's keys and values from a layer's cache, ``[2 * tokens * kv_heads, dim]``, to ``out``,
        ``[2, rows, kv_heads, keys, dim]``, as ``prepared.key_indices`` says."""

    def begin(self, batch: Batch) -> None:
        """A new step."""
        self._batch = batch
        self._prepared.clear()
        self._keys.clear()
        self.attention_launches = self.kv_read_bytes = self.gather_bytes = 0
        self.attention_s = self.gather_s = 0.0

    def attend(self, op: Attention, q: Tensor, cache: Tensor, out: Tensor) -> None:
        """Write the attention of the batch's queries to ``out``, ``[tokens, heads * dim]``.

        q: ``[tokens, heads, dim]``, rotated, contiguous.
        cache: the layer's keys and values, ``[2, tokens of the arena, kv_heads * dim]``.
        """
        begin, launched = time.perf_counter(), self.launches.count
        self._attend(op, q, cache, out)
        self.attention_s += time.perf_counter() - begin
        self.attention_launches += self.launches.count - launched
        self.kv_read_bytes += 2 * self._keys[op.window] * self.kv_heads * self.head_dim * self.dtype.itemsize

    def _attend(self, op: Attention, q: Tensor, cache: Tensor, out: Tensor) -> None:
        assert self._batch is not None
        if op.window not in self._keys:
            self._keys[op.window] = int((self._batch.contexts - first_keys(self._batch, op.window)).sum())
        kind = op.window, op.softcap > 0
        if kind not in self._prepared:
            groups = self.groups(self._batch, op.window)
            self._prepared[kind] = [Prepared(g, op, self.dtype, self.kv_heads, self.launches) for g in groups]
        for prepared in self._prepared[kind]:
            span = prepared.group.span
            attend = self._attend_chunks if prepared.chunked else self._attend_rows
            attend(op, prepared, q[span], cache, out[span])

    def _attend_rows(self, op: Attention, prepared: Prepared, q: Tensor, cache: Tensor, out: Tensor) -> None:
        """A padded batch. The query heads of a KV head are folded to rows of one product."""
        group, launches = prepared.group, self.launches
        keys, values = self._collected(prepared, cache).flatten(1, 2).unbind(0)
        shape = (group.rows, self.kv_heads, self.heads // self.kv_heads, group.queries, self.head_dim)
        (piece,) = prepared.pieces
        if group.queries == 1:
            target = out.view(keys.shape[0], -1, self.head_dim)
            batched(q.view(shape), keys, values, piece.mask, op.scale, op.softcap, launches, target)
            return
        if prepared.query_indices is not None:
            q = launches(torch.index_select(q, 0, prepared.query_indices))
        by_token = (group.rows, group.queries, self.kv_heads, shape[2], self.head_dim)
        q = launches(self._space("queries", shape).copy_(q.view(by_token).permute(0, 2, 3, 1, 4)))
        result = self._space("results", (keys.shape[0], shape[2] * group.queries, self.head_dim))
        batched(q, keys, values, piece.mask, op.scale, op.softcap, launches, result)
        result = result.view(shape).permute(0, 3, 1, 2, 4)
        if prepared.padded_indices is not None:
            padded = launches(self._space("padded", by_token).copy_(result)).view(-1, out.shape[1])
            launches(torch.index_select(padded, 0, prepared.padded_indices, out=out))
        else:
            launches(out.view(by_token).copy_(result))

    def _attend_chunks(self, op: Attention, prepared: Prepared, q: Tensor, cache: Tensor, out: Tensor) -> None:
        """Many queries of one sequence, a chunk at a time. Keys that lie in one run are read in place."""
        kv_heads, folds, dim = self.kv_heads, self.heads // self.kv_heads, self.head_dim
        start = prepared.run_start
        if start is None:
            both = self._collected(prepared, cache)[:, 0]
        else:
            both = cache[:, start : start + prepared.group.keys].view(2, -1, kv_heads, dim).transpose(1, 2)
        for piece in prepared.pieces:
            keys, values = both[:, :, piece.k].unbind(0)
            queries = q[piece.q].view(-1, kv_heads, folds, dim).permute(1, 2, 0, 3)
            target = out[piece.q].view(-1, kv_heads, folds, dim).permute(1, 2, 0, 3)
            if prepared.flash:
                spread = (kv_heads, folds, keys.shape[1], dim)
                keys, values = keys[:, None].expand(spread), values[:, None].expand(spread)
                attend = torch.nn.functional.scaled_dot_product_attention
                result = self.launches(attend(queries, keys, values, attn_mask=piece.mask, scale=op.scale))
            else:
                copied = self.launches(self._space("queries", tuple(queries.shape)).copy_(queries))
                result = self._space("results", (kv_heads, folds * queries.shape[2], dim))
                batched(copied[None], keys, values, piece.mask, op.scale, op.softcap, self.launches, result)
            self.launches(target.copy_(result.view(target.shape)))

    def _collected(self, prepared: Prepared, cache: Tensor) -> Tensor:
        group = prepared.group
        begin = time.perf_counter()
        out = self._space("keys", (2, group.rows, self.kv_heads, group.keys, self.head_dim))
        self.collect(prepared, cache.view(-1, self.head_dim), out)
        self.gather_s += time.perf_counter() - begin
        self.gather_bytes += out.nbytes
        return out

    def _space(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A piece of memory of the compute dtype that stays for later steps; its contents are whatever was left there."""
        size = int(np.prod(shape))
        space = self._spaces.get(name)
        if space is None or space.numel() < size:
            space = self._spaces[name] = torch.empty(size, dtype=self.dtype)
        return space[:size].view(shape)
