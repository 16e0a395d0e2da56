"""EventReader: server-sent events out of bytes that arrive in any pieces."""

from __future__ import annotations

BOM = b"\xef\xbb\xbf"


class EventReader:
    """Feed it what arrives; it gives back the data of each event that is complete. One reader reads one stream.

    Follows the WHATWG's rules for event streams: lines end in LF, CRLF or CR, lines that begin with a colon are comments, several
    data lines of one event are joined by LF, and events without data are none. Two liberties are taken: fields other than
    ``data`` are not looked at, and what stands at the end of the stream without an empty line behind it counts (``close``).
    """

    def __init__(self) -> None:
        self._rest = b""  # a line that is not complete
        self._data: list[bytes] = []  # of the event under way
        self._begun = False
        self._after_cr = False

    def feed(self, piece: bytes) -> list[bytes]:
        """The data of every event that this piece completes."""
        if not self._rest and not self._data and self._begun and piece.endswith(b"\n\n") and b"\r" not in piece:
            blocks = piece[:-2].split(b"\n\n")
            if all(block.startswith(b"data: ") and b"\n" not in block for block in blocks):  # as nearly all servers send them
                return [block[6:] for block in blocks]
        return self._feed(piece)

    def _feed(self, piece: bytes) -> list[bytes]:
        if self._after_cr and piece.startswith(b"\n"):  # the rest of a CRLF
            piece = piece[1:]
        self._after_cr = piece.endswith(b"\r")
        text = self._rest + piece
        if not self._begun:
            if len(text) < len(BOM) and BOM.startswith(text):
                self._rest = text
                return []
            self._begun = True
            text = text.removeprefix(BOM)
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        return [data for line in lines if (data := self._line(line)) is not None]

    def close(self) -> list[bytes]:
        """The stream is over: what is still there as an event."""
        rest, self._rest = self._rest, b""
        last = [self._line(rest), self._line(b"")] if rest else [self._line(b"")]
        return [data for data in last if data is not None]

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value[1:] if value.startswith(b" ") else value)
        return None
