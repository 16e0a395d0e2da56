"""How much of a workload's prompts is shared: what a prefix cache that forgets nothing could reuse."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.bench.workload import BenchRequest


def shared_tokens(requests: Iterable[BenchRequest]) -> list[int]:
    """Of each request, the leading prompt tokens that some earlier prompt begins with, too."""
    nodes: dict[tuple[int, int, int], int] = {}  # (node, key, tokens) -> the node behind this whole segment
    longest: dict[tuple[int, int], int] = {}  # (node, key) -> most tokens of this key's content that were seen here
    found = []
    for request in requests:
        node, shared, together = 0, 0, True
        for segment in request.segments:
            seen = longest.get((node, segment.key), 0)
            step = (node, segment.key, segment.tokens)
            if together:
                shared += min(seen, segment.tokens)
                together = step in nodes  # else what follows here was never seen to follow
            longest[node, segment.key] = max(seen, segment.tokens)
            node = nodes.setdefault(step, len(nodes) + 1)
        found.append(shared)
    return found
