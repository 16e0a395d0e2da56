"""PrefixTree: from hashes of a prompt's blocks to segments, so that what was shared is shared again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from octavo.bench.workload import Segment

ROOT = 0


class PrefixTree:
    """A trie of blocks. Prompts that begin with the same hashes get the same leading segments, whatever the hashes are.

    new_key: gives segment keys. A prompt that leaves the known paths begins a new key there; one that ends or branches off within
    a key's content takes the first part of it, which by the meaning of keys is the same content.
    """

    def __init__(self, new_key: Callable[[], int]):
        self._new_key = new_key
        self._children: dict[tuple[int, Hashable], int] = {}
        # Of each node: the node before it, its segment's key, where its block ends within that segment, and within the prompt.
        self._parent = [ROOT]
        self._key = [-1]
        self._end = [0]
        self._depth = [0]

    def find(self, hashes: Sequence[Hashable], most: int) -> tuple[int, int]:
        """The last node of the longest known path along these hashes that has at most ``most`` tokens; and how many blocks."""
        node = ROOT
        for count, block in enumerate(hashes):
            child = self._children.get((node, block))
            if child is None or self._depth[child] > most:
                return node, count
            node = child
        return node, len(hashes)

    def depth(self, node: int) -> int:
        """Tokens of the path that ends here."""
        return self._depth[node]

    def grow(self, node: int, hashes: Sequence[Hashable], sizes: Sequence[int]) -> int:
        """Append blocks, each of its number of tokens, below a node; the node of the last."""
        key = self._new_key()
        offset = 0
        for block, size in zip(hashes, sizes, strict=True):
            offset += size
            self._children[(node, block)] = child = len(self._parent)
            self._parent.append(node)
            self._key.append(key)
            self._end.append(offset)
            self._depth.append(self._depth[node] + size)
            node = child
        return node

    def segments(self, node: int) -> tuple[Segment, ...]:
        """The prompt that ends here; empty where it has no tokens."""
        found: list[Segment] = []
        while node != ROOT:
            key = self._key[node]
            if self._end[node]:
                found.append(Segment(key, self._end[node]))
            while self._key[node] == key:
                node = self._parent[node]
        return tuple(reversed(found))
