"""AttentionPath: one way to compute attention over the KV cache with torch. What the ways share is here."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.attention.batch import Batch, Group
from octavo.models.program import Attention
from octavo.runner.launches import Launches

QUERY_CHUNK = 256  # queries of one sequence in one launch: bounds the mask, and skips most of what a causal mask would hide


@dataclass(frozen=True, slots=True)
class Piece:
    """One launch of dense attention: queries ``q`` of a group's rows over their keys ``k``, under an additive mask (None: all
    are seen)."""

    q: slice
    k: slice
    mask: Tensor | None


class Prepared:
    """A group with its indices and masks as tensors, ready for every layer of the step."""

    def __init__(self, group: Group, window: int | None, dtype: torch.dtype, query_groups: int, launches: Launches):
        self.group = group
        self.padded = group.rows > 1 and group.span.stop - group.span.start < group.rows * group.queries
        self.run_start = group.run_start()
        if self.padded:
            self.query_indices = torch.from_numpy(group.query_indices().reshape(-1))
            self.padded_indices = torch.from_numpy(group.padded_indices())
        self._key_indices: Tensor | None = None
        self.pieces = list(self._pieces(window, dtype, query_groups, launches))

    def key_indices(self) -> Tensor:
        """``[2 * rows * keys]``: where the group's keys, then its values, are in a layer's cache, its first two axes joined."""
        if self._key_indices is None:
            keys = self.group.key_indices().reshape(-1)
            self._key_indices = torch.from_numpy(np.concatenate((keys, keys + self.group.batch.view.arena.tokens)))
        return self._key_indices

    def _pieces(self, window: int | None, dtype: torch.dtype, query_groups: int, launches: Launches) -> Iterator[Piece]:
        group = self.group
        if group.rows > 1 or group.queries == 1:
            seen = group.visible(window)
            mask = None
            if not seen.all():
                # Queries of one KV head are folded to rows (see dense), each query's heads together.
                folded = np.repeat(seen, query_groups, axis=1) if group.queries > 1 else seen
                mask = _additive(folded, dtype, launches)[:, None]
            yield Piece(slice(0, group.queries), slice(0, group.keys), mask)
            return
        # Chunks of one row end at the last key that their last query sees, so one mask aligned to that corner serves them all.
        chunk = min(QUERY_CHUNK, group.queries)
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


def _additive(seen: np.ndarray, dtype: torch.dtype, launches: Launches) -> Tensor:
    """0 where a key is seen, minus infinity where it is not."""
    hidden = torch.from_numpy(~seen)
    mask = torch.zeros(hidden.shape, dtype=dtype)
    launches.count += 1
    return launches(mask.masked_fill_(hidden, -torch.inf))


class AttentionPath(ABC):
    """Computes ``Attention`` operations of one model. ``begin`` is called once per step, ``attend`` for each layer.

    ``name`` is the setting that chooses the path. A path differs from the others in how it groups rows and how it brings their
    keys and values together; the arithmetic (``dense``) is the same.
    """

    name: str

    def __init__(self, heads: int, kv_heads: int, head_dim: int, dtype: torch.dtype, launches: Launches):
        self.heads, self.kv_heads, self.head_dim, self.dtype = heads, kv_heads, head_dim, dtype
        self.launches = launches
        self._groups: dict[int | None, list[Prepared]] = {}
        self._batch: Batch | None = None
        self._spaces: dict[str, Tensor] = {}

    @abstractmethod
    def describe(self) -> str:
        """The path's name, and what it copies."""

    @abstractmethod
    def groups(self, batch: Batch, window: int | None) -> Iterator[Group]:
        """The rows that are computed together."""

    @abstractmethod
    def fetch(self, prepared: Prepared, cache: Tensor) -> Tensor:
        """The group's keys and values, ``[2, rows, keys, kv_heads * dim]``, from a layer's cache ``[2, tokens, kv_heads * dim]``.
        Every element is a key or value of its row: beyond a row's own keys they may repeat, but nothing else is read."""

    def begin(self, batch: Batch) -> None:
        """A new step."""
        self._batch = batch
        self._groups.clear()

    def attend(self, op: Attention, q: Tensor, cache: Tensor, out: Tensor) -> None:
        """Write the attention of the batch's queries to ``out``, ``[tokens, heads * dim]``.

        q: ``[tokens, heads, dim]``, rotated. cache: the layer's keys and values, ``[2, tokens of the arena, kv_heads * dim]``.
        """
        assert self._batch is not None
        prepared = self._groups.get(op.window)
        if prepared is None:
            groups = self.groups(self._batch, op.window)
            prepared = [Prepared(g, op.window, self.dtype, self.heads // self.kv_heads, self.launches) for g in groups]
            self._groups[op.window] = prepared
        for group in prepared:
            self._attend_group(op, group, q, self.fetch(group, cache), out)

    def space(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A piece of memory of the compute dtype that stays for later steps: its contents are whatever was left there."""
        size = int(np.prod(shape))
        space = self._spaces.get(name)
        if space is None or space.numel() < size:
            space = self._spaces[name] = torch.empty(size, dtype=self.dtype)
        return space[:size].view(shape)

    def _attend_group(self, op: Attention, prepared: Prepared, q: Tensor, fetched: Tensor, out: Tensor) -> None:
        group = prepared.group
        keys, values = fetched.view(2, group.rows, group.keys, self.kv_heads, self.head_dim).transpose(2, 3).unbind(0)
        if group.rows == 1 and group.queries > 1:
            self._attend_chunks(op, prepared.pieces, q[group.span], keys[0], values[0], out[group.span])
        else:
            self._attend_rows(op, prepared, q[group.span], keys, values, out[group.span])

    def _attend_chunks(self, op: Attention, pieces: list[Piece], q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """One sequence. The KV heads take the place of a batch and the query heads of each read its keys in place."""
        kv_heads, folds, dim = self.kv_heads, self.heads // self.kv_heads, self.head_dim
        for piece in pieces:
            queries, count = q[piece.q].view(-1, kv_heads, folds, dim), piece.k.stop - piece.k.start
            k = keys[:, None, piece.k].expand(kv_heads, folds, count, dim)
            v = values[:, None, piece.k].expand(kv_heads, folds, count, dim)
            result = dense(queries.permute(1, 2, 0, 3), k, v, piece.mask, op.scale, op.softcap, self.launches)
            self.launches(out[piece.q].view(queries.shape).copy_(result.permute(2, 0, 1, 3)))

    def _attend_rows(self, op: Attention, prepared: Prepared, q: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        """A padded batch. The query heads of a KV head are folded to rows, so keys are neither repeated nor read twice."""
        group, launches = prepared.group, self.launches
        (piece,) = prepared.pieces
        if prepared.padded:
            q = launches(torch.index_select(q, 0, prepared.query_indices))
        shape = (group.rows, group.queries, self.kv_heads, self.heads // self.kv_heads, self.head_dim)
        q = q.view(shape).transpose(1, 2)
        if group.queries > 1:
            q = launches(self.space("queries", tuple(q.shape)).copy_(q))
        result = dense(q.flatten(2, 3), keys, values, piece.mask, op.scale, op.softcap, launches)
        result = result.view(group.rows, self.kv_heads, group.queries, -1, self.head_dim).transpose(1, 2)
        if prepared.padded:
            padded = launches(self.space("padded", tuple(result.shape)).copy_(result)).view(-1, out.shape[1])
            launches(torch.index_select(padded, 0, prepared.padded_indices, out=out))
        else:
            launches(out.view(shape).copy_(result))


def dense(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, softcap: float, launches: Launches
) -> Tensor:
    """softmax(softcap(q @ keys.T * scale) + mask) @ values; all ``[a, b, queries or keys, dim]``, the mask broadcasts."""
    if not softcap:
        return launches(torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask, scale=scale))
    scores = launches(torch.matmul(q, keys.transpose(2, 3)))
    scores = launches(scores.to(torch.float32)) if scores.dtype != torch.float32 else scores
    launches(scores.mul_(scale / softcap))
    launches(scores.tanh_())
    launches(scores.mul_(softcap))
    if mask is not None:
        launches(scores.add_(mask))
    weights = launches(torch.softmax(scores, -1))
    weights = launches(weights.to(values.dtype)) if weights.dtype != values.dtype else weights
    return launches(torch.matmul(weights, values))
