"""SeenPrefixes: how much of the traffic repeats, whatever the prefix cache makes of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.kv.prefix import Chain

UNIT = 16
ENTRIES = 2**20


class SeenPrefixes:
    """Remembers prefixes in units of 16 tokens, by 64 bits of their digests, in a table of 2**20 places (8 MiB, mapped as it
    fills). Where two digests have the same place by chance the newer one takes it: of N units that were remembered, a share of
    N / 2**21 has been forgotten while N is far below 2**20; beyond that, mostly what is long past.
    """

    def __init__(self) -> None:
        self._table = np.zeros(ENTRIES, np.uint64)

    def see(self, tokens: Sequence[int], chain: Chain | None = None) -> int:
        """Remember all prefixes of these tokens. Returns how many of the first tokens were a prefix of something seen before.

        chain: of the same tokens, whose digests serve if its unit is this one's.
        """
        if chain is None or chain.unit != UNIT:
            chain = Chain(tokens, UNIT)
        count = len(tokens) // UNIT
        if not count:
            return 0
        chain.digest(count - 1)
        digests = np.frombuffer(b"".join(chain.digests[:count]), np.uint64)[::2]
        places = digests % np.uint64(ENTRIES)
        known = self._table[places] == digests
        self._table[places] = digests
        return (count if known.all() else int(known.argmin())) * UNIT
