"""open_checkpoint: from what a user typed to a model on disk."""

from __future__ import annotations

from pathlib import Path

from octavo.errors import ModelError
from octavo.models.aliases import ALIASES, resolve_alias
from octavo.models.checkpoint import Checkpoint


def open_checkpoint(model: str) -> Checkpoint:
    """The model that ``model`` names: a Hugging Face folder, a ``.gguf`` file, or an alias (``aliases.py``); "~" is expanded.

    Reads headers only. Raises ModelError where there is no such model, or it is not one that octavo can run.
    """
    path = resolve_alias(model) if model in ALIASES else _expand(model)
    if path.is_dir():
        from octavo.models.safetensors import HFCheckpoint

        return HFCheckpoint(path)
    if path.is_file() and path.suffix.lower() == ".gguf":
        from octavo.models.gguf import GGUFCheckpoint

        packaged = ALIASES.get(model)
        checkpoint = GGUFCheckpoint(path, packaged.sampling if packaged else None)
        if packaged:
            checkpoint.quantized_matmul = packaged.quantized_matmul
        return checkpoint
    known = ", ".join(ALIASES)
    what = "is a file but does not end in .gguf" if path.is_file() else "is no model that octavo can find here"
    raise ModelError(
        f"{model!r} {what}: a folder with config.json and safetensors, a .gguf file, or one of the names {known} is accepted."
    )


def _expand(model: str) -> Path:
    if not model:
        raise ModelError("The model is an empty string: a path or a name is needed.")
    try:
        path = Path(model).expanduser()
        path.exists()  # a null byte or a name too long for the system shows here
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"{model!r} cannot be a path: {error}.") from None
    return path


def describe_weights(checkpoint: Checkpoint) -> str:
    """The weights' element types in a line, most frequent first: "210 x Q4_1, 61 x F32, 1 x Q8_0"."""
    kinds = checkpoint.weight_kinds()
    return ", ".join(f"{kinds[kind]} x {kind}" for kind in sorted(kinds, key=kinds.__getitem__, reverse=True))
