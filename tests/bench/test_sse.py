"""Server-sent events out of bytes, in whatever pieces they arrive."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bench.client.sse import EventReader


def read(*pieces: bytes) -> list[bytes]:
    reader = EventReader()
    return [event for piece in pieces for event in reader.feed(piece)] + reader.close()


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),  # one space after the colon is no data, a second one is
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b": a comment\n\ndata: a\n\n: another\n", [b"a"]),
        (b"data: a\n: in between\ndata: b\n\n", [b"a\nb"]),
        (b"event: x\nid: 7\nretry: 3\ndata: a\n\n", [b"a"]),
        (b"data\n\n", [b""]),
        (b"event: nothing\n\n\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\ndata: no empty line behind it", [b"a", b"no empty line behind it"]),
        (b"data: a\ndata: b", [b"a\nb"]),
        (b"", []),
    ],
)
def test_events_are_those_of_the_standard(stream: bytes, events: list[bytes]) -> None:
    assert read(stream) == events
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == events


fields = st.sampled_from([b"data: a", b"data:b", b"data: {}", b": x", b"", b"", b"event: e", b"data"])
ends = st.sampled_from([b"\n", b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(fields, ends)), st.lists(st.integers(0, 200)))
def test_where_the_bytes_are_cut_makes_no_difference(lines: list[tuple[bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(field + end for field, end in lines)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[a:b] for a, b in pairwise(places)]
    assert read(*pieces) == read(*(stream[i : i + 1] for i in range(len(stream))))


def test_an_event_is_given_out_with_the_byte_that_completes_it() -> None:
    reader = EventReader()
    assert reader.feed(b"data: a\n\nda") == [b"a"]
    assert reader.feed(b"ta: b\n") == []
    assert reader.feed(b"\n") == [b"b"]
    assert reader.feed(b"data: c\n\ndata: d\n\n") == [b"c", b"d"]
    assert reader.feed(b"data: e\r\n\r") == [b"e"]
