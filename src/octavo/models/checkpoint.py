"""Checkpoint: one model on disk, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from octavo.models.config import DecoderConfig

if TYPE_CHECKING:
    from octavo.models.chat import ChatTemplate
    from octavo.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A weight as it lies in the file: mapped, not read, not converted.

    kind:  the element type, by GGML's name: "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", ...
    shape: logical shape, rows first: ``(out, in)`` for a linear weight, ``(width,)`` for a norm.
    data:  uint8 ``[rows, bytes per row]`` (``[1, bytes]`` for one dimension). Quantised blocks run along a row, so rows can be
           permuted or sliced without unpacking.
    """

    kind: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    @property
    def bytes(self) -> int:
        """Bytes in the file."""
        return int(self.data.nbytes)

    def to_float32(self) -> npt.NDArray[np.float32]:
        """The values, dequantised: float32 of ``shape``."""
        from octavo.models.dequantize import dequantize

        return dequantize(self)


class Checkpoint(ABC):
    """A model on disk. Opening one reads and checks headers only; weights stay mapped, the tokenizer waits until asked for."""

    path: str
    config: DecoderConfig
    quantized_matmul = "int8"  # what EngineConfig.quantized_matmul is for this model where it is not set

    @abstractmethod
    def tensor(self, name: str) -> RawTensor:
        """The weight of this canonical name (``names.py``), in canonical row order. Raises ModelError where it is missing."""

    @abstractmethod
    def weight_kinds(self) -> dict[str, int]:
        """How many tensors there are of each element type, for the line printed at start."""

    @cached_property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ModelError where it is missing or of a kind that is not supported."""

    @cached_property
    @abstractmethod
    def chat_template(self) -> ChatTemplate | None:
        """The model's chat template; None where it brings none."""

    @abstractmethod
    def drop_pages(self) -> None:
        """Give back the memory of the weights read so far: for a runner that made its own copy. They can still be read again."""

    @abstractmethod
    def generation_defaults(self) -> dict[str, Any]:
        """Sampling defaults that the model's authors ship (``generation_config.json``); empty where there are none."""
