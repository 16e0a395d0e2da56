"""Weights as float32."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

from octavo.models.checkpoint import RawTensor


def dequantize(tensor: RawTensor) -> npt.NDArray[np.float32]:
    """The tensor's values: float32 of its shape, a copy unless it is F32 already (then read-only, as the file is)."""
    return _values(tensor).reshape(tensor.shape)


def _values(tensor: RawTensor) -> npt.NDArray[np.float32]:
    data = np.ascontiguousarray(tensor.data)
    if tensor.kind == "F32":
        return data.view(np.float32)
    if tensor.kind == "F16":
        return data.view(np.float16).astype(np.float32)
    if tensor.kind == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    import gguf  # here, because it is slow to import and plain weights do not need it

    kind = gguf.GGMLQuantizationType[tensor.kind]
    return cast(npt.NDArray[np.float32], gguf.quants.dequantize(data, kind))
