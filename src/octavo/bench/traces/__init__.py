"""Traces of real traffic, replayed: public formats, and octavo's own captures. One small reader for each."""

from octavo.bench.traces.read import FORMATS, read_trace

__all__ = ["FORMATS", "read_trace"]
