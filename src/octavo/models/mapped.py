"""A file mapped into memory, and the weights in it as views of that mapping."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np

from octavo.errors import ModelError
from octavo.models.checkpoint import RawTensor
from octavo.models.kinds import row_bytes


def map_file(path: Path) -> mmap.mmap:
    """The whole file, read-only; nothing of it is read before it is touched. Raises ModelError where that is impossible."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelError(f"{path} is empty.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}.") from None


def tensor_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor whose rows are packed one after the other."""
    total = row_bytes(kind, shape[-1])
    for size in shape[:-1]:
        total *= size
    return total


def tensor_view(memory: mmap.mmap, kind: str, shape: tuple[int, ...], offset: int) -> RawTensor:
    """The tensor that begins at byte ``offset``. The caller has checked that it lies within the file."""
    count = tensor_bytes(kind, shape)
    data = np.frombuffer(memory, np.uint8, count, offset)
    return RawTensor(kind, shape, data.reshape(-1, row_bytes(kind, shape[-1])))
