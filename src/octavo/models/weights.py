"""Which weight of a file is which weight of the program: nothing missing, nothing left over, every shape as it must be."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from octavo.errors import ModelError
from octavo.models.config import DecoderConfig
from octavo.models.decoder import weight_shapes

Shape = tuple[int, ...]


def check_config(where: str, config: DecoderConfig) -> None:
    """Raise ModelError where the numbers contradict each other."""
    if config.heads % config.kv_heads:
        raise ModelError(
            f"{where}: {config.heads} attention heads do not divide into groups for {config.kv_heads} key/value heads: "
            "the number of heads must be a multiple of the number of key/value heads."
        )
    if config.head_dim % 2:
        raise ModelError(f"{where}: a head has {config.head_dim} dimensions: rotary positions need an even number.")
    for token in (config.bos_token_id, *config.eos_token_ids):
        if token is not None and not 0 <= token < config.vocab:
            raise ModelError(f"{where}: token id {token} lies outside the vocabulary of {config.vocab}.")


def check_rope(where: str, config: DecoderConfig) -> None:
    """Raise ModelError where positions cannot be told apart by angles. To be called once the weights have confirmed the sizes."""
    try:
        usable = all(0 < frequency < math.inf for frequency in config.rope.inverse_frequencies())
    except (OverflowError, ZeroDivisionError):
        usable = False
    if not usable:
        raise ModelError(f"{where}: the rotary base {config.rope.theta:g} and its scaling lead to frequencies out of range.")


def match_weights(
    where: str,
    config: DecoderConfig,
    found: Mapping[str, Shape],
    file_name: Callable[[str], str],
    ignored: Callable[[str], bool],
) -> dict[str, str]:
    """The file's name of every canonical name. ``found``: shape of every tensor in the file; ``ignored``: those without effect.

    Raises ModelError, naming tensors, where one is missing or of the wrong shape, or where one would go unused.
    """
    if config.layers > len(found):  # before a program of that many layers is built
        raise ModelError(f"{where} states {config.layers} layers but holds only {len(found)} tensors.")
    expected = weight_shapes(config)
    matched = {name: file_name(name) for name in expected}
    missing = [name for name in matched.values() if name not in found]
    if missing:
        raise ModelError(f"{where} lacks {listing(missing)}: the file is incomplete, or not of the architecture that it states.")
    for name, of_file in matched.items():
        if found[of_file] != expected[name]:
            raise ModelError(f"{where}: tensor {of_file} has shape {found[of_file]}: {expected[name]} is needed.")
    unused = [name for name in found.keys() - set(matched.values()) if not ignored(name)]
    if unused:
        raise ModelError(
            f"{where} holds {listing(sorted(unused))}, which octavo's {config.architecture} decoder does not use: "
            "its output would be wrong."
        )
    return matched


def listing(items: Collection[str], most: int = 4) -> str:
    """The first of them in words, and how many more there are."""
    shown = list(items)[:most]
    rest = len(items) - len(shown)
    return (
        "tensor " * (len(items) == 1) + "tensors " * (len(items) > 1) + ", ".join(shown) + (f" and {rest} more" if rest else "")
    )
