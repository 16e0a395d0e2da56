"""Every setting, defined once: name, type, default, help. The command line, the TOML file and the Python API come from here.

Names are vLLM's wherever vLLM has one. A setting that cannot take effect is refused by name, here where two settings
contradict each other, and by the part it concerns where only that part can know.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError
from octavo.units import parse_bytes

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_BLOCK_SIZE = 16
DEFAULT_HYBRID_THRESHOLD = 512
DEFAULT_MAX_PREEMPTIONS = 4
DEFAULT_SWAP_SPACE = "1GiB"


def setting(
    default: Any,
    help: str,
    choices: tuple[str, ...] | None = None,
    low: float | None = None,
    high: float | None = None,
    size: bool = False,
) -> Any:
    """A dataclass field that is a setting. ``size``: bytes, also written as text such as "4GiB"."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, "low": low, "high": high, "size": size})


class Settings:
    """What EngineConfig and ServerConfig have in common: every field is checked against its definition."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = _checked(field, getattr(self, field.name), self.types()[field.name])
            object.__setattr__(self, field.name, value)

    @classmethod
    def types(cls) -> dict[str, Any]:
        """The type of each setting, annotations resolved."""
        return typing.get_type_hints(cls)

    @classmethod
    def names(cls) -> list[str]:
        """The settings in order of definition."""
        return [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class EngineConfig(Settings):
    """What the engine runs and how. Construct it with any subset of the settings by name."""

    model: str = setting(
        DEFAULT_MODEL,
        "a Hugging Face folder, a .gguf file, or an alias; the default is an alias for SmolLM2-135M-Instruct",
    )
    runner: str = setting(
        "auto",
        "what computes: the compiled library, torch, or (auto) the first where it was compiled and has what is asked for",
        choices=("auto", "native", "torch"),
    )
    enforce_eager: bool = setting(
        False, "call the compiled library once for each operation, not once for each step (native runner; for measuring)"
    )
    dtype: str = setting(
        "auto",
        "element type of weights and activations; auto: the checkpoint's where this CPU computes it well, else float32. "
        "What becomes of quantised weights on the native runner is said by quantized_matmul",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    quantized_matmul: str | None = setting(
        None,
        "native runner, GGUF's 4- to 8-bit weights: kept as they are and multiplied with activations rounded to 8 bits (int8, "
        "the default: less memory, faster), or widened at load (bfloat16: closer to the file; the default of smollm2-135m)",
        choices=("int8", "bfloat16"),
    )
    seed: int | None = setting(
        0, "where requests that bring no seed draw theirs from; none: from the operating system", low=0, high=2**63 - 1
    )
    max_model_len: int | None = setting(
        None,
        "most tokens of a prompt and its output together; unset: the model's context, or what the KV memory holds",
        low=2,
    )
    max_num_seqs: int = setting(64, "most sequences that run at once", low=1, high=65536)
    max_num_batched_tokens: int = setting(2048, "most tokens computed in one step: decode first, then prefill chunks", low=1)
    kv_layout: str = setting(
        "paged", "how keys and values are laid out in memory", choices=("contiguous", "paged", "hybrid", "virtual")
    )
    block_size: int | None = setting(
        None, f"tokens in a block: a power of two from 1 to 256 (paged, hybrid; default {DEFAULT_BLOCK_SIZE})", low=1, high=256
    )
    kv_memory: int | None = setting(
        None,
        "bytes for keys and values (2GiB, 512MiB, ...); unset: 4 GiB or a quarter of the memory allowed, the smaller",
        size=True,
    )
    kv_cache_dtype: str = setting(
        "auto",
        "element type of keys and values; auto: the activations'; int8: with a scale for each token and head (native runner)",
        choices=("auto", "bfloat16", "int8"),
    )
    enable_prefix_caching: bool | None = setting(None, "compute shared prefixes once; unset: on")
    contiguous_reserve: str | None = setting(
        None,
        "what a contiguous sequence reserves: the longest a request may be (max-len, the default), what it may need (request), "
        "or the next power of two, doubled by copying it when it is full (grow)",
        choices=("max-len", "request", "grow"),
    )
    compaction: str | None = setting(
        None,
        "contiguous with reserve request or grow: when a request fits only into several holes together, the runs between them "
        "are moved, all at once (pause) or a few megabytes before each step (incremental, the default)",
        choices=("pause", "incremental"),
    )
    hybrid_threshold: int | None = setting(
        None,
        f"hybrid: sequences expected to stay below this many tokens get a contiguous run (default {DEFAULT_HYBRID_THRESHOLD})",
        low=1,
    )
    attention: str = setting(
        "fused", "how attention reads the KV cache: in one launch, gathered first, or a launch per request",
        choices=("fused", "gather", "per-request"),
    )  # fmt: skip
    max_preemptions: int | None = setting(
        None,
        "how often a request may be preempted; after that it is admitted with its whole length reserved (paged, hybrid, virtual, "
        "and contiguous with reserve grow; "
        f"default {DEFAULT_MAX_PREEMPTIONS})",
        low=0,
    )
    async_scheduling: bool = setting(
        True,
        "plan the next step, and prepare its memory, while one computes; tokens are the same, a new request may wait a step more",
    )
    preemption: str | None = setting(
        None,
        "what becomes of the keys and values of a sequence that is put out for want of memory: computed again (recompute, the "
        "default), copied to the swap space and back (swap), or the cheaper of the two as measured (auto) (paged, hybrid, "
        "contiguous with reserve grow)",
        choices=("recompute", "swap", "auto"),
    )
    swap_space: int | None = setting(
        None,
        f"bytes for preempted sequences, beside kv_memory (preemption swap and auto; default {DEFAULT_SWAP_SPACE})",
        size=True,
    )
    threads: int | None = setting(None, "compute threads; unset: the CPUs that this process may use", low=1, high=4096)
    record: str | None = setting(
        None, "a file, replaced if it exists, that gets a line for every step and a few for every request; octavo trace shows it"
    )
    profile: int | None = setting(
        None,
        "steps to run under torch's profiler, after the first few (torch runner, and with record: saved beside it)",
        low=1,
        high=10_000,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size is not None and self.block_size & (self.block_size - 1):
            raise ConfigError(f"block_size is {self.block_size}: a power of two from 1 to 256 is accepted.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens} with max_num_seqs={self.max_num_seqs}: a step "
                "must hold one token of every sequence; raise the first or lower the second."
            )
        if self.profile is not None and self.record is None:
            raise ConfigError(
                f"profile is {self.profile} without record: the profile is saved beside the record and shown with it; set both."
            )
        self._only_with("contiguous_reserve", "contiguous")
        self._only_with("compaction", "contiguous")
        if self.compaction is not None and self.contiguous_reserve in (None, "max-len"):
            raise ConfigError(
                f"compaction is {self.compaction} with contiguous_reserve=max-len: its runs are all of one length and leave no "
                "holes to join; it takes effect with request and grow only."
            )
        self._only_with("hybrid_threshold", "hybrid")
        self._only_with("block_size", "paged", "hybrid")  # contiguous has no blocks,
        if self.contiguous_reserve != "grow":
            # and its runs do not grow, so nobody is put out
            self._only_with("max_preemptions", "paged", "hybrid", "virtual")
            self._only_with("preemption", "paged", "hybrid", "virtual")
        if self.swap_space is not None and self.preemption not in ("swap", "auto"):
            raise ConfigError(
                f"swap_space is set, but preemption is {self.preemption or 'recompute'}: it takes effect with swap and auto only."
            )
        if self.preemption in ("swap", "auto"):
            # A place that virtual releases may be shown as another one before a copy is made.
            self._only_with("preemption", "contiguous", "paged", "hybrid")

    def _only_with(self, name: str, *layouts: str) -> None:
        value = getattr(self, name)
        if value is not None and self.kv_layout not in layouts:
            accepted = " and ".join(layouts)
            raise ConfigError(f"{name} is {value} with kv_layout={self.kv_layout}: it takes effect with {accepted} only.")

    @property
    def prefix_caching(self) -> bool:
        """``enable_prefix_caching`` with its default resolved."""
        return self.enable_prefix_caching is not False


@dataclass(frozen=True, kw_only=True)
class ServerConfig(Settings):
    """How ``octavo serve`` listens."""

    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 is every interface")
    port: int = setting(8000, "port to listen on; 0: any free one", low=0, high=65535)
    served_model_name: str | None = setting(None, "the model's id in the API; unset: the model as it was named")
    api_key: str | None = setting(None, "the key that requests must bring as a bearer token; unset: none")
    max_request_bytes: int = setting(16 * 2**20, "largest request body (16MiB, ...)", size=True)
    shutdown_timeout: float = setting(30.0, "seconds that running requests get to finish after SIGTERM", low=0, high=86400.0)


def from_mapping(cls: type[Any], values: dict[str, Any]) -> Any:
    """An instance of a Settings class from names and values. Unknown names are refused with the nearest known one."""
    for name in values:
        if name not in cls.names():
            raise ConfigError(f"{name} is no setting{_nearest(name, cls.names())}")
    return cls(**values)


def read_toml(path: str | Path) -> dict[str, Any]:
    """The settings in a TOML file: a flat table, names with underscores or dashes. Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not valid TOML: {error}.") from None
    known = EngineConfig.names() + ServerConfig.names()
    settings: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"config file {path}: {key} is no setting{_nearest(name, known)}")
        if name in settings:
            raise ConfigError(f"config file {path}: {name} is set twice, with a dash and with an underscore.")
        settings[name] = value
    return settings


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; accepted are {', '.join(known)}."


def _checked(field: dataclasses.Field[Any], value: Any, hint: Any) -> Any:
    """The value, converted where that loses nothing, or ConfigError."""
    name, meta = field.name, field.metadata
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    (kind,) = [o for o in options if o is not type(None)]
    optional = type(None) in options
    if optional and (value is None or (kind is not str and isinstance(value, str) and value.lower() == "none")):
        return None  # as text too: TOML has no null
    if meta["size"] and isinstance(value, (int, str)) and not isinstance(value, bool):
        return parse_bytes(name, value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is str and isinstance(value, Path):
        value = str(value)
    if type(value) is not kind:
        raise ConfigError(f"{name} is {value!r}: {_accepted(kind, meta)} is accepted.")
    outside = (meta["low"] is not None and not value >= meta["low"]) or (meta["high"] is not None and not value <= meta["high"])
    if outside or (meta["choices"] and value not in meta["choices"]) or (kind is str and not value):
        raise ConfigError(f"{name} is {value!r}: {_accepted(kind, meta)} is accepted.")
    return value


def _accepted(kind: type, meta: typing.Mapping[str, Any]) -> str:
    if meta["choices"]:
        return " or ".join(filter(None, [", ".join(meta["choices"][:-1]), meta["choices"][-1]]))
    if meta["size"]:
        return 'a number of bytes, or text such as "512MiB" or "4GiB",'
    what = {int: "an integer", float: "a number", bool: "true or false", str: "text that is not empty"}[kind]
    if meta["low"] is not None and meta["high"] is not None:
        return f"{what} from {_plain(meta['low'])} to {_plain(meta['high'])}"
    return f"{what} of at least {_plain(meta['low'])}" if meta["low"] is not None else what


def _plain(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)
