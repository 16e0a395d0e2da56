"""What travels between the engine and its clients, in one process (as objects) or two (as msgpack)."""

from __future__ import annotations

import msgspec

from octavo.request import Request, TokenUpdate


class Stats(msgspec.Struct, kw_only=True, array_like=True):
    """The engine's gauges now, and its counters since start. Token counts unless said otherwise.

    Peaks are those of all steps since start, each by itself, while a step ran: its own tokens are used, nothing is released yet.
    """

    running: int = 0
    waiting: int = 0
    kv_usage: float = 0.0  # 0..1: blocks (or runs) that sequences hold; what the prefix cache alone holds counts as free
    kv_used: int = 0
    kv_reserved: int = 0
    kv_wasted_inside: int = 0
    kv_wasted_outside: int = 0
    kv_shared: int = 0
    kv_token_bytes: int = 0  # bytes of one token's keys and values
    kv_peak_used: int = 0
    kv_peak_reserved: int = 0
    kv_peak_wasted: int = 0
    preemptions: int = 0
    swapped_out: int = 0  # tokens of preempted sequences, copied to the swap space, and back
    swapped_in: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    prefix_reusable: int = 0  # what a prefix cache that never forgets would have found
    prompt_tokens: int = 0  # computed, not taken from the prefix cache
    generation_tokens: int = 0
    steps: int = 0

    def kv_bytes(self) -> dict[str, int]:
        """Bytes of the KV cache as they are now: "reserved" by sequences, "used" by computed tokens, and "wasted": reserved and
        not used, or free and out of every sequence's reach."""
        wasted = self.kv_wasted_inside + self.kv_wasted_outside
        return {
            "reserved": self.kv_reserved * self.kv_token_bytes,
            "used": self.kv_used * self.kv_token_bytes,
            "wasted": wasted * self.kv_token_bytes,
        }

    def kv_peak_bytes(self) -> dict[str, int]:
        """The same at their peaks."""
        return {
            "reserved": self.kv_peak_reserved * self.kv_token_bytes,
            "used": self.kv_peak_used * self.kv_token_bytes,
            "wasted": self.kv_peak_wasted * self.kv_token_bytes,
        }


class Add(msgspec.Struct, tag="add", array_like=True):
    """Client to engine: run this."""

    request: Request


class Abort(msgspec.Struct, tag="abort", array_like=True):
    """Client to engine: drop these; each that is still known is answered by a TokenUpdate with finish "abort"."""

    ids: list[str]
    stopped: bool = False  # a stop string ended them, which only the client sees: they count as finished


class TextTime(msgspec.Struct, tag="text_time", array_like=True):
    """Client to engine, for the record: what turning a request's tokens into text took, once it has ended."""

    id: str
    seconds: float


class GetWindow(msgspec.Struct, tag="get_window", array_like=True):
    """Client to engine: what was recorded lately; one of ``seconds`` and ``steps`` is given. Answered by a Window."""

    number: int
    seconds: float | None = None
    steps: int | None = None


class Shutdown(msgspec.Struct, tag="shutdown", array_like=True):
    """Client to engine: end now."""


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """Engine to client: serving. ``effective`` is the configuration as it really is, name to value, for people to read."""

    effective: dict[str, str]
    max_model_len: int
    kv_capacity_tokens: int
    block_size: int  # 0: the layout has no blocks
    threads: int = 1  # that compute


class Outputs(msgspec.Struct, tag="outputs", array_like=True):
    """Engine to client: what one step brought. ``stats`` already counts the blocks freed by the requests that end here.

    step: the line of the step's record (``octavo.observe``); empty where there was no step, only requests that were aborted.
    """

    updates: list[TokenUpdate]
    stats: Stats
    step: bytes = b""


class Window(msgspec.Struct, tag="window", array_like=True):
    """Engine to client: the record that was asked for."""

    number: int
    record: bytes


class Rejected(msgspec.Struct, tag="rejected", array_like=True):
    """Engine to client: this request can never be served, and why. ``internal``: a fault of the engine, not of the request."""

    id: str
    message: str
    param: str | None = None
    internal: bool = False


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """Engine to client: the engine cannot start, or cannot go on, and ends."""

    message: str


ToEngine = Add | Abort | TextTime | GetWindow | Shutdown
FromEngine = Ready | Outputs | Window | Rejected | Failed
