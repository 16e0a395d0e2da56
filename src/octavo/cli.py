"""The command line: every setting of ``config.py`` as an option, and the commands that use them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import types
import typing
from collections.abc import Collection
from typing import Any

from octavo.bench.arguments import NOT_HERE, add_bench, add_compare
from octavo.bench.capture import command as capture_command
from octavo.config import DEFAULT_MODEL, EngineConfig, ServerConfig, Settings, from_mapping, read_toml
from octavo.errors import ConfigError, OctavoError
from octavo.ladder.arguments import add_ladder
from octavo.sweep.arguments import NOT_HERE as NOT_SWEPT
from octavo.sweep.arguments import add_sweep
from octavo.version import __version__


def main(argv: list[str] | None = None) -> int:
    """Run a command. Returns its exit status: 0, 1 for what octavo refuses or reports, 130 after Ctrl-C."""
    words = sys.argv[1:] if argv is None else argv
    args = _parser().parse_args(_with_two_words(words), argparse.Namespace(words=words))
    try:
        status: int = args.run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever read our output has left: `octavo generate ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 1
    except OctavoError as error:
        print(f"octavo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _with_two_words(argv: list[str]) -> list[str]:
    """``bench compare`` is a command by itself, whose name has two words."""
    return ["bench compare", *argv[2:]] if argv[:2] == ["bench", "compare"] else argv


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="octavo", description="LLM inference with a KV cache layout of your choice")
    parser.add_argument("--version", action="version", version=f"octavo {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve a model over an OpenAI-compatible HTTP API")
    _add_settings(serve, ServerConfig)
    _add_settings(serve, EngineConfig)
    serve.set_defaults(run=_serve)

    generate = commands.add_parser("generate", help="continue a prompt in the terminal")
    generate.add_argument("-p", "--prompt", required=True, help="the text to continue; - reads it from standard input")
    generate.add_argument("--chat", action="store_true", help="put the prompt as a user's message through the chat template")
    generate.add_argument("--max-tokens", type=int, help="most new tokens (default 256, or what fits)")
    generate.add_argument("--temperature", type=float, default=0.0, help="0, the default, is greedy")
    generate.add_argument("--top-p", type=float, default=1.0, help="keep the likeliest tokens up to this probability")
    generate.add_argument("--top-k", type=int, default=0, help="keep this many of the likeliest tokens; 0: all")
    generate.add_argument("--stop", action="append", help="end before this text; may be given more than once")
    generate.add_argument("--verbose", action="store_true", help="print the effective configuration and the speed")
    _add_settings(generate, EngineConfig)
    generate.set_defaults(run=_generate)

    bench = commands.add_parser("bench", help="measure latencies and rates under a fixed load, of an engine or of any server")
    add_bench(bench)
    bench.add_argument("--model", default=argparse.SUPPRESS, help=_help(EngineConfig, "model"))
    _add_options(bench, EngineConfig, without=NOT_HERE)
    bench.set_defaults(run=_bench)

    compare = commands.add_parser("bench compare", help="compare results of octavo bench: differences, intervals, noise")
    add_compare(compare)
    compare.set_defaults(run=_bench_compare)

    sweep = commands.add_parser("sweep", help="the block-size table: memory and latency of every layout and block size")
    add_sweep(sweep)
    sweep.add_argument("--model", default=argparse.SUPPRESS, help=_help(EngineConfig, "model"))
    _add_options(sweep, EngineConfig, without=NOT_SWEPT)
    sweep.set_defaults(run=_sweep)

    capture = commands.add_parser("capture", help="record real traffic as a trace of lengths and sharing, without its text")
    capture_command.add_arguments(capture)
    capture.set_defaults(run=capture_command.capture)

    ladder = commands.add_parser("ladder", help="how much each cause of a slow paged KV cache accounts for")
    ladder.add_argument("model", metavar="MODEL", nargs="?", default=DEFAULT_MODEL, help=_help(EngineConfig, "model"))
    add_ladder(ladder)
    ladder.set_defaults(run=_ladder)

    trace = commands.add_parser("trace", help="turn a record (--record, POST /debug/record) into a trace that Perfetto opens")
    trace.add_argument("record", metavar="RECORD", help="the file; a profile beside it (--profile) is joined to it")
    trace.add_argument("-o", "--output", metavar="FILE", help="where to (-: standard output; .gz: compressed; unset: beside it)")
    trace.set_defaults(run=_trace)
    return parser


def _add_settings(parser: argparse.ArgumentParser, cls: type[Settings]) -> None:
    """An option for each setting, and for the engine's the model and a file of settings."""
    _add_options(parser, cls)
    if cls is EngineConfig:
        parser.add_argument("model_positional", metavar="MODEL", nargs="?", help=_help(EngineConfig, "model"))
        parser.add_argument("--config", metavar="FILE", help="a TOML file of settings; options on the command line override it")


def _add_options(parser: argparse.ArgumentParser, cls: type[Settings], without: Collection[str] = ()) -> None:
    """An option for each setting. Nothing is set by default, so that the command line only overrides the file where it speaks."""
    group = parser.add_argument_group({"EngineConfig": "engine", "ServerConfig": "server"}[cls.__name__])
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name == "model" or field.name in without:
            continue
        hint = cls.types()[field.name]
        options = [o for o in typing.get_args(hint) if o is not type(None)] if isinstance(hint, types.UnionType) else [hint]
        flag = "--" + field.name.replace("_", "-")
        common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS, "help": _help(cls, field.name)}
        if options == [bool]:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            kind = str if field.metadata["size"] else options[0]
            choices = field.metadata["choices"]
            metavar = None if choices else {int: "N", float: "SECONDS", str: "TEXT"}[kind]
            group.add_argument(flag, type=_reader(kind), choices=choices, metavar=metavar, **common)


def _reader(kind: type) -> Any:
    def read(text: str) -> Any:
        return text if text.lower() == "none" else kind(text)  # a setting that cannot be none says so itself

    read.__name__ = {int: "integer", float: "number", str: "text"}[kind]  # argparse names it: "invalid integer value"
    return read


def _help(cls: type[Settings], name: str) -> str:
    field = next(f for f in dataclasses.fields(cls) if f.name == name)  # type: ignore[arg-type]
    text = str(field.metadata["help"]).replace("%", "%%")
    return text if field.default is None or "default" in text else f"{text} (default {field.default})"


def _settings(args: argparse.Namespace) -> tuple[EngineConfig, ServerConfig]:
    """Both configurations: the TOML file's settings, overridden by the command line's."""
    values = read_toml(args.config) if args.config else {}
    given = vars(args)
    values |= {name: given[name] for name in EngineConfig.names() + ServerConfig.names() if name in given and name != "model"}
    if args.model_positional is not None:
        values["model"] = args.model_positional
    server = {name: values.pop(name) for name in ServerConfig.names() if name in values}
    return from_mapping(EngineConfig, values), from_mapping(ServerConfig, server)


def _serve(args: argparse.Namespace) -> int:
    from octavo.server.serve import serve

    return serve(*_settings(args))


def _trace(args: argparse.Namespace) -> int:
    from octavo.observe.command import trace

    return trace(args.record, args.output)


def _generate(args: argparse.Namespace) -> int:
    from octavo.engine.terminal import generate_to_terminal
    from octavo.request import SamplingParams

    config, server = _settings(args)
    ignored = [f.name for f in dataclasses.fields(server) if getattr(server, f.name) != f.default]
    if ignored:
        raise ConfigError(f"config file {args.config} sets {', '.join(ignored)}: it takes effect with octavo serve only.")
    params = SamplingParams(
        temperature=args.temperature, top_p=args.top_p, top_k=args.top_k, max_tokens=args.max_tokens, stop=args.stop
    )
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    return generate_to_terminal(config, prompt, params, chat=args.chat, verbose=args.verbose)


def _bench(args: argparse.Namespace) -> int:
    from octavo.bench.command import bench

    given = vars(args)
    settings = {name: given[name] for name in EngineConfig.names() if name in given and name not in NOT_HERE}
    return bench(args, settings)


def _ladder(args: argparse.Namespace) -> int:
    from octavo.ladder.command import ladder

    return ladder(args, args.model)


def _sweep(args: argparse.Namespace) -> int:
    from octavo.sweep.command import sweep

    given = vars(args)
    return sweep(args, {name: given[name] for name in EngineConfig.names() if name in given and name not in NOT_SWEPT})


def _bench_compare(args: argparse.Namespace) -> int:
    from octavo.bench.command import bench_compare

    return bench_compare(args)


if __name__ == "__main__":
    sys.exit(main())
