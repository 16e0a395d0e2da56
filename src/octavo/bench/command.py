"""``octavo bench`` and ``octavo bench compare``: from the command line's arguments to tables and JSON."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from octavo.bench.arguments import ALL, SERVER_OPTIONS
from octavo.bench.arms import DEFAULT_CONTEXT, Arm, EngineArm, ServerArm, check_arms, find_checkpoint
from octavo.bench.baseline import Baseline
from octavo.bench.client.openai import find_model, parse_url
from octavo.bench.compare import Comparison, compare, comparison_lines, pairs, read_results
from octavo.bench.goals import parse_goals
from octavo.bench.interrupt import STATUS as INTERRUPTED
from octavo.bench.load import Load
from octavo.bench.print_workload import print_workload, workload_json
from octavo.bench.report import Json, Result, document
from octavo.bench.session import Session
from octavo.bench.suites import SUITES, suite
from octavo.bench.table import result_lines, summary_lines
from octavo.bench.traces.read import FORMATS, read_trace
from octavo.bench.vary import configurations
from octavo.bench.workload import Workload
from octavo.config import EngineConfig
from octavo.errors import ConfigError

CONTEXT = "max_model_len"  # the one engine setting that says something of a server, too


def bench(args: argparse.Namespace, settings: dict[str, Any]) -> int:
    """Run ``octavo bench``. settings: the engine's, as far as they were given.

    Returns the exit status: 1 if nothing was answered or not all could be run, 130 after Ctrl-C.
    """
    _check(args, settings)
    goals = parse_goals(args.goodput)
    load = Load(
        concurrency=args.concurrency,
        rate=args.rate,
        burstiness=args.burstiness,
        warmup=args.warmup,
        timeout_s=args.timeout,
        seed=args.seed,
    )
    baseline = Baseline(args.baseline) if args.baseline else None
    arms = _arms(args, settings)
    workloads = _workloads(args, arms)
    if args.print:
        return _print(args, workloads)
    output = _Output(args.json, _command(args), baseline)
    names = " and ".join(workload.name for workload in workloads) if len(workloads) < 3 else f"{len(workloads)} suites"
    print(f"octavo bench: {names} on {' and '.join(arm.config['title'] for arm in arms[:1])}", file=sys.stderr, flush=True)
    session = Session(arms, workloads, load, repeat=args.repeat, goals=goals, on_result=output.result)
    session.run()
    output.finish(whole=not session.interrupted and session.error is None)
    return INTERRUPTED if session.interrupted else int(session.error is not None or output.nothing_completed)


def bench_compare(args: argparse.Namespace) -> int:
    """Run ``octavo bench compare``. Returns the exit status."""
    if len(args.files) < 2:
        raise ConfigError(f"compare is given {args.files[0]} alone: two files or more are accepted, the first is the base.")
    base, *others = (read_results(file) for file in args.files)
    comparisons = []
    for file, other in zip(args.files[1:], others, strict=True):
        found = pairs(base, other)
        if not found:
            raise ConfigError(f"{args.files[0]} and {file} have no suite in common.")
        comparisons += [compare(*pair) for pair in found]
    _print_comparisons(comparisons, sys.stderr if args.json == "-" else sys.stdout)
    if args.json:
        _write_json(args.json, {"schema": 1, "command": "bench compare", "comparisons": [c.json() for c in comparisons]})
    return 0


class _Output:
    """Prints each result as it comes, and at the end what can be said of all of them."""

    def __init__(self, json_file: str | None, command: str, baseline: Baseline | None):
        self._json_file = json_file
        self._command = command
        self._baseline = baseline
        self._out = sys.stderr if json_file == "-" else sys.stdout
        self._results: list[Json] = []

    def result(self, result: Result) -> None:
        made = result.json()
        self._results.append(made)
        print("", *result_lines(made), sep="\n", file=self._out, flush=True)

    def finish(self, whole: bool) -> None:
        """``whole``: nothing was interrupted; only then is something kept as a baseline."""
        results = self._results
        if len(results) > 1:
            print("", *summary_lines(results), sep="\n", file=self._out)
        comparisons = []
        for name in dict.fromkeys(r["suite"] for r in results):
            base, *others = [r for r in results if r["suite"] == name]
            comparisons += [compare(base, other) for other in others]
        _print_comparisons(comparisons, self._out)
        if self._baseline is not None:
            self._compare_with(self._baseline, whole)
        if self._json_file and results:
            _write_json(self._json_file, document(self._command, results))

    @property
    def nothing_completed(self) -> bool:
        """Whether not one request was answered."""
        return not any(result["metrics"]["completed"] for result in self._results)

    def _compare_with(self, baseline: Baseline, whole: bool) -> None:
        for name in dict.fromkeys(r["suite"] for r in self._results):
            ours = [r for r in self._results if r["suite"] == name]
            kept = baseline.results(name)
            if kept:
                _print_comparisons([compare(*pair) for pair in pairs(kept, ours)], self._out)
            elif whole:
                baseline.keep(name, self._command, ours)
                print(f"\nKept as the baseline of {name}: {baseline.path(name)}", file=self._out)


def _print_comparisons(comparisons: Sequence[Comparison], out: TextIO) -> None:
    for comparison in comparisons:
        print("", *comparison_lines(comparison), sep="\n", file=out, flush=True)


def _check(args: argparse.Namespace, settings: dict[str, Any]) -> None:
    """Refuse what cannot take effect."""
    if (args.suite is None) == (args.trace is None):
        accepted = ", ".join((*SUITES, ALL))
        raise ConfigError(
            f"SUITE and --trace are {'both' if args.suite else 'neither'} given: one of {accepted}, or --trace FILE, is accepted."
        )
    if args.json not in (None, "-") and not os.access(Path(args.json).absolute().parent, os.W_OK):
        raise ConfigError(f"json is {args.json}: a file in a folder that is there and can be written to is accepted.")
    if args.repeat < 1:
        raise ConfigError(f"repeat is {args.repeat}: an integer of at least 1 is accepted.")
    if args.trace is None:
        _without_effect(args, ("trace_format", "time_scale"), "trace")
    elif args.trace_format is not None and args.trace_format not in FORMATS:
        raise ConfigError(f"trace_format is {args.trace_format!r}: {', '.join(FORMATS)} is accepted.")
    if args.url is None:
        _without_effect(args, SERVER_OPTIONS, "url")
    else:
        engine = sorted(settings.keys() - {CONTEXT}) + [name for name in ("vary", "config") if getattr(args, name)]
        if engine:
            raise ConfigError(f"{engine[0]} is set with --url: it takes effect on an engine in this process only.")


def _command(args: argparse.Namespace) -> str:
    """The command line for documents, which others will see: without the key, however the option was written."""
    return shlex.join(["octavo", *(word.replace(args.api_key, "...") if args.api_key else word for word in args.words)])


def _without_effect(args: argparse.Namespace, names: Sequence[str], needed: str) -> None:
    for name in names:
        if (value := getattr(args, name)) is not None:
            raise ConfigError(f"{name} is {value} without {needed}: it takes effect with --{needed} only.")


def _arms(args: argparse.Namespace, settings: dict[str, Any]) -> list[Arm]:
    if args.url is None:
        seed = args.seed if args.prompt_seed is None else args.prompt_seed
        made = configurations(settings, args.config or [], args.vary or [])
        engines = [EngineArm(config, seed, label) for label, config in made]
        check_arms(engines)
        return list(engines)
    seed = secrets.randbits(32) if args.prompt_seed is None else args.prompt_seed
    key = args.api_key or os.environ.get("OPENAI_API_KEY")
    extra = _extra_body(args.extra_body)
    servers: list[Arm] = []
    for url in args.url:
        address = parse_url(url, args.endpoint, key)
        model = find_model(address, args.served_model)
        if model.max_model_len is None and CONTEXT not in settings:
            print(
                f"octavo bench: {url} does not say its context; {DEFAULT_CONTEXT} tokens are assumed (--max-model-len)",
                file=sys.stderr,
            )
        servers.append(
            ServerArm(
                address,
                model,
                seed,
                checkpoint=find_checkpoint(args.tokenizer, model),
                context=_context(settings),
                ignore_eos=args.ignore_eos is None,
                extra_body=extra,
                label=url if len(args.url) > 1 else "",
            )
        )
    return servers


def _context(settings: dict[str, Any]) -> int | None:
    value: int | None = EngineConfig(**{CONTEXT: settings[CONTEXT]}).max_model_len if CONTEXT in settings else None
    return value


def _extra_body(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"extra_body is no JSON: {error}.") from None
    if not isinstance(value, dict):
        raise ConfigError(f"extra_body is {text}: a JSON object is accepted.")
    return value


def _workloads(args: argparse.Namespace, arms: Sequence[Arm]) -> list[Workload]:
    """The same requests for every configuration: what fits the one with the shortest context."""
    context = min(arm.max_model_len for arm in arms)
    if args.trace is None:
        names = SUITES if args.suite == ALL else (args.suite,)
        return [suite(name, requests=args.requests, max_model_len=context, seed=args.seed) for name in names]
    scale = 1.0 if args.time_scale is None else args.time_scale
    return [
        read_trace(
            args.trace,
            format=args.trace_format,
            limit=args.requests,
            max_model_len=context,
            time_scale=scale,
            seed=args.seed,
            tokenizer=arms[0].tokenizer,
        )
    ]


def _print(args: argparse.Namespace, workloads: Sequence[Workload]) -> int:
    out = sys.stderr if args.json == "-" else sys.stdout
    for workload in workloads:
        print_workload(workload, file=out)
        print(file=out)
    if args.json:
        made = [workload_json(workload) for workload in workloads]
        _write_json(args.json, made[0] if len(made) == 1 else {"workloads": made})
    return 0


def _write_json(file: str, value: Json) -> None:
    text = json.dumps(value, allow_nan=False)
    if file == "-":
        print(text)
    else:
        Path(file).write_text(text + "\n", encoding="utf-8")
