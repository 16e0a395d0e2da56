"""What a capture says of itself at its end."""

from __future__ import annotations

from pathlib import Path

from octavo.bench.capture.writer import CaptureWriter
from octavo.bench.context import counted


def summary(writer: CaptureWriter, output: Path) -> str:
    """How many requests were written and left out, and what to do with them."""
    lines = [f"{counted(writer.rows, 'request')} written to {output}, {writer.estimated} of them with an estimated length."]
    lines += [f"{counted(count, 'request')} left out: {reason}." for reason, count in writer.left_out.items()]
    if writer.rows:
        lines.append(f"Replay: octavo bench --trace {output}")
    return "\n".join(lines)
