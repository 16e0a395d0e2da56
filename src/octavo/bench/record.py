"""RequestRecord: what the client saw of one request. Everything that is reported is computed from these."""

from __future__ import annotations

from dataclasses import dataclass, field

# Kinds of errors; HTTP statuses other than 200 are "http_404" and so on. docs/metrics.md says what each means.
CONNECT = "connect"
DISCONNECT = "disconnect"
TIMEOUT = "timeout"
SERVER_ERROR = "server_error"
MALFORMED = "malformed"
NO_OUTPUT = "no_output"
REFUSED = "refused"


@dataclass(slots=True)
class RequestRecord:
    """One request, from the moment it was meant to be sent. Moments are seconds of ``time.monotonic()``.

    index:         its place in the workload.
    prompt_tokens: as asked for; the server's count once it gave one.
    asked_tokens:  output tokens asked for.
    intended:      when it was to be sent. Latency counts from here.
    sent:          when it was handed to the socket, or to the engine; None: not yet.
    moments:       when each piece of output arrived. A piece is what one event brings: usually one token.
    tokens:        how many tokens each piece holds: 1 unless the server says otherwise (see ``stated``).
    stated:        whether every count in ``tokens`` is the server's own.
    text:          the output, where somebody has to count its tokens; else empty.
    output_tokens: of the whole output as the server counted it at the end, or a tokenizer did; None: nobody did.
    token_source:  who did: "server", "tokenizer" or "chunks" (nobody).
    ended:         when the answer was complete, or failed; None: it is under way.
    finish:        the server's reason, "length" or "stop" or others.
    streamed:      False: the answer came whole although a stream was asked for.
    error:         kind of the error; None: none. message: a sentence about it.
    """

    index: int
    prompt_tokens: int
    asked_tokens: int
    intended: float
    sent: float | None = None
    moments: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    stated: bool = True
    text: str = ""
    output_tokens: int | None = None
    token_source: str = "chunks"
    cached_tokens: int | None = None
    ended: float | None = None
    finish: str | None = None
    streamed: bool = True
    error: str | None = None
    message: str = ""

    @property
    def completed(self) -> bool:
        """Whether the answer is there, whole."""
        return self.ended is not None and self.error is None

    @property
    def count(self) -> int:
        """Output tokens: the count for the whole where there is one, else the sum over the pieces."""
        return sum(self.tokens) if self.output_tokens is None else self.output_tokens

    # ---- latencies, in seconds; docs/metrics.md derives them

    @property
    def ttft(self) -> float | None:
        """From the intended send to the first piece of output."""
        return self.moments[0] - self.intended if self.moments else None

    @property
    def e2e(self) -> float | None:
        """From the intended send to the last piece of output."""
        return self.moments[-1] - self.intended if self.moments else None

    @property
    def tpot(self) -> float | None:
        """Mean time from one token to the next. None for one token, and where all came in one piece."""
        if self.count < 2 or len(self.moments) < 2:
            return None
        return (self.moments[-1] - self.moments[0]) / (self.count - 1)
