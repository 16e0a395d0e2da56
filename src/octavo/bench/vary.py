"""Configurations out of --config and --vary: every file with every combination of values."""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from octavo.bench.arguments import NOT_HERE
from octavo.config import EngineConfig, ServerConfig, from_mapping, read_toml
from octavo.errors import ConfigError


def configurations(given: dict[str, Any], files: Sequence[str], vary: Sequence[str]) -> list[tuple[str, EngineConfig]]:
    """Pairs of a label (what tells it from the others; empty for a single one) and the settings.

    given: settings of the command line, which override a file's. vary: texts such as "block_size=8,16". Raises ConfigError.
    """
    axes = [_axis(text) for text in vary]
    names = [name for name, _ in axes]
    twice = {name for name in names if names.count(name) > 1 or name in given}
    if twice:
        raise ConfigError(f"{min(twice)} is given twice: once as --vary, and again.")
    made = []
    for file in files or [""]:
        values = (_from_file(file) if file else {}) | given
        for combination in itertools.product(*(axis for _, axis in axes)):
            chosen = dict(zip(names, (value for _, value in combination), strict=True))
            parts = [file] if len(files) > 1 else []
            parts += [f"{name}={text}" for name, (text, _) in zip(names, combination, strict=True)]
            made.append((" ".join(parts), from_mapping(EngineConfig, values | chosen)))
    labels = [label for label, _ in made]
    if len(set(labels)) < len(labels):
        raise ConfigError("two configurations are the same: every value and file is accepted once.")
    return made if len(made) > 1 else [("", made[0][1])]


def _from_file(file: str) -> dict[str, Any]:
    values = read_toml(file)
    server = sorted(values.keys() & set(ServerConfig.names()))
    if server:
        raise ConfigError(f"config file {file} sets {', '.join(server)}: it takes effect with octavo serve only.")
    return values


def _axis(text: str) -> tuple[str, list[tuple[str, Any]]]:
    """The setting, and its values as written and as they are."""
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if not equals or name not in EngineConfig.names() or name in NOT_HERE:
        raise ConfigError(
            f"vary is {text!r}: an engine setting, =, and values with commas between them are accepted, such as block_size=8,16."
        )
    return name, [(value.strip(), read_setting(name, value.strip())) for value in values.split(",")]


def read_setting(name: str, text: str) -> Any:
    """An engine setting's value from text; what does not fit is left for ``EngineConfig`` to refuse. Raises ConfigError."""
    hint = EngineConfig.types()[name]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (kind,) = [kind for kind in kinds if kind is not type(None)]
    size = next(field.metadata["size"] for field in fields(EngineConfig) if field.name == name)
    if text.lower() == "none" or kind is str or size:
        return text
    if kind is bool:
        found = {"true": True, "on": True, "yes": True, "false": False, "off": False, "no": False}.get(text.lower())
        if found is None:
            raise ConfigError(f"{name} is {text!r}: true or false is accepted.")
        return found
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f"{name} is {text!r}: that is no {'integer' if kind is int else 'number'}.") from None
