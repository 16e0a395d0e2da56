"""``octavo capture``: its options, and which of its two ways they ask for."""

from __future__ import annotations

import argparse
from pathlib import Path

from octavo.errors import ConfigError

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8001
OF_THE_PROXY = ("host", "port")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--upstream", metavar="URL", help="pass requests on to this OpenAI-compatible server, and record them")
    source.add_argument("--log", metavar="FILE", type=Path, help="convert a log of OpenAI requests, as JSON lines")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the trace; must not exist yet")
    parser.add_argument("--host", metavar="TEXT", help=f"address to listen on (default {DEFAULT_HOST})")
    parser.add_argument("--port", metavar="N", type=int, help=f"port to listen on; 0: any free one (default {DEFAULT_PORT})")
    parser.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="a model whose tokenizer makes shared lengths exact; unset: that of the upstream's model, if this machine has it",
    )


def capture(args: argparse.Namespace) -> int:
    """Run the command. Returns the exit status."""
    from octavo.bench.capture.model import TextSide, open_text_side, served_text_side

    text = TextSide() if args.tokenizer is None else open_text_side(args.tokenizer)
    if args.log is not None:
        from octavo.bench.capture.log import capture_log

        for name in OF_THE_PROXY:
            if getattr(args, name) is not None:
                raise ConfigError(f"{name} is {getattr(args, name)} with log={args.log}: it takes effect with upstream only.")
        return capture_log(args.log, args.output, text)

    from octavo.bench.capture.live import capture_live

    port = DEFAULT_PORT if args.port is None else args.port
    if not 0 <= port <= 65535:
        raise ConfigError(f"port is {port}: an integer from 0 to 65535 is accepted.")
    if args.tokenizer is None:
        text = served_text_side(args.upstream)
    return capture_live(args.upstream, args.output, host=args.host or DEFAULT_HOST, port=port, text=text)
