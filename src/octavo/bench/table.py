"""A result as a table for the terminal, understood without the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.bench.metrics import RATES, STATISTICS
from octavo.bench.report import Json
from octavo.units import format_bytes

ROWS = (
    ("ttft_s", "TTFT, time to first token"),
    ("itl_s", "ITL, from token to token"),
    ("icl_s", "ICL, from chunk to chunk"),
    ("tpot_s", "TPOT, a request's time per token"),
    ("e2e_s", "E2E, whole request"),
)
WIDTH = 36
COLUMN = 10
MESSAGES = 3  # of errors, that are shown


def title(result: Json) -> str:
    """What was run on what, in one line."""
    label = f" [{result['label']}]" if result["label"] else ""
    return f"{result['suite']} on {result['config']['title']}{label}"


def result_lines(result: Json) -> list[str]:
    """All of it."""
    metrics, workload, rounds = result["metrics"], result["workload"], len(result["rounds"])
    times = f"{metrics['duration_s']:.1f} s" if rounds == 1 else f"{rounds} rounds, {metrics['duration_s']:.1f} s in all"
    requests = counted(workload["requests"], "request")
    lines = [
        title(result),
        f"{requests}, {workload['prompt_tokens']} prompt and {workload['output_tokens']} output tokens; "
        f"{result['config']['load']['title']}; {times}",
        result["config"]["summary"],
        *workload["notes"],
        "",
    ]
    if any(made["interrupted"] for made in result["rounds"]):
        lines.insert(
            3, f"Interrupted: {counted(metrics['unfinished'], 'request')} under way, which count for rates, not for latencies."
        )
    lines += _latencies(metrics, rounds)
    lines += ["", *_rates(result), *_requests(result), *_memory(result), *_client(metrics)]
    return lines


def summary_lines(results: Sequence[Json]) -> list[str]:
    """A row for each of several results."""
    names = [f"{r['suite']}{' ' + r['label'] if r['label'] else ''}" for r in results]
    width = max(12, *map(len, names))
    head = (f"{'output':>10}{'total':>10}{'':>11}{'TTFT ms':>20}{'ITL ms':>20}{'E2E s':>20}", "tok/s", "tok/s", "requests/s")
    lines = [f"{'':{width}}{head[0]}", f"{'':{width}}{head[1]:>10}{head[2]:>10}{head[3]:>11}" + f"{'p50':>10}{'p99':>10}" * 3]
    for name, result in zip(names, results, strict=True):
        m = result["metrics"]
        cells = [
            f"{format_number(m['output_tok_s']):>10}",
            f"{format_number(m['total_tok_s']):>10}",
            f"{format_number(m['requests_s']):>11}",
        ]
        for latency, scale in (("ttft_s", 1e3), ("itl_s", 1e3), ("e2e_s", 1.0)):
            spread = m[latency] or {}
            cells += [f"{format_number(spread.get(p), scale):>10}" for p in ("p50", "p99")]
        lines.append(f"{name:{width}}" + "".join(cells))
    return lines


def _latencies(metrics: Json, rounds: int) -> list[str]:
    of = "median of the rounds" if rounds > 1 else ""
    lines = [f"{of:{WIDTH}}{'':4}" + "".join(f"{name:>{COLUMN}}" for name in STATISTICS)]
    for name, words in ROWS:
        if name == "icl_s" and not _several_tokens(metrics):
            continue
        spread = metrics[name]
        unit, scale = ("s", 1.0) if name == "e2e_s" else ("ms", 1e3)
        cells = ["-"] * len(STATISTICS) if spread is None else [format_number(spread[s], scale) for s in STATISTICS]
        lines.append(f"{words:{WIDTH}}{unit:4}" + "".join(f"{cell:>{COLUMN}}" for cell in cells))
    return lines


def _several_tokens(metrics: Json) -> bool:
    """Whether pieces of output held several tokens each."""
    return bool(metrics["output_tokens"] > 1.05 * metrics["chunks"])


def _rates(result: Json) -> list[str]:
    metrics = result["metrics"]
    if metrics["output_tok_s"] is None:
        return []
    output, total, requests = (format_number(metrics[name]) for name in RATES)
    lines = [f"{'Throughput':{WIDTH}}{output} output tokens/s, {total} with the prompts', {requests} requests/s"]
    if len(result["rounds"]) > 1:
        values = [made["metrics"]["output_tok_s"] for made in result["rounds"] if made["metrics"]["output_tok_s"] is not None]
        lines.append(f"{'':{WIDTH}}{format_number(min(values))} to {format_number(max(values))} output tokens/s in the rounds")
    if (goodput := metrics["goodput"]) is not None:
        goals = ", ".join(f"{name.upper()} within {bound:g} s" for name, bound in goodput["goals"].items())
        lines.append(
            f"{'Goodput':{WIDTH}}{format_number(goodput['requests_s'])} requests/s, {goodput['fraction']:.1%}, with {goals}"
        )
    return lines


def _requests(result: Json) -> list[str]:
    metrics = result["metrics"]
    failed = sum(metrics["errors"].values())
    kinds = ", ".join(f"{count} {kind}" for kind, count in metrics["errors"].items())
    lines = [f"{'Requests':{WIDTH}}{metrics['completed']} completed, {failed} failed{f': {kinds}' if kinds else ''}"]
    messages = list(dict.fromkeys(f"{r['error']}: {r['message']}" for r in result["requests"] if r["error"] is not None))
    lines += [f"  {message}" for message in messages[:MESSAGES]]
    if metrics["short"]:
        lines.append(f"  {metrics['short']} ended with fewer tokens than they asked for.")
    sources = metrics["token_sources"]
    if sources.get("chunks"):
        lines.append(f"  Output tokens of {counted(sources['chunks'], 'request')} are chunks: nobody counts their tokens.")
    if sources.get("tokenizer"):
        lines.append(
            f"  Output tokens of {counted(sources['tokenizer'], 'request')} are counted by the tokenizer: the server counts none."
        )
    if _several_tokens(metrics) and metrics["itl_s"] == metrics["icl_s"]:
        per_chunk = metrics["output_tokens"] / metrics["chunks"]
        lines.append(f"  ITL is from chunk to chunk, of {per_chunk:.1f} tokens each: the server does not say how many each has.")
    return lines


def _memory(result: Json) -> list[str]:
    lines = []
    metrics, kv = result["metrics"], result["kv"]
    if kv is not None:
        scope = "" if kv["scope"] == "run" else ", since the server's start"
        lines.append(
            f"{'KV memory at its peak':{WIDTH}}{format_bytes(kv['reserved'])} reserved, {format_bytes(kv['used'])} used, "
            f"{format_bytes(kv['wasted'])} wasted{scope}"
        )
    if metrics["looked_up_tokens"]:
        share = metrics["cached_tokens"] / metrics["looked_up_tokens"]
        lines.append(f"{'Prefix cache':{WIDTH}}{share:.1%} of the prompt tokens found")
    if metrics["preemptions"]:
        lines.append(f"{'Preemptions':{WIDTH}}{metrics['preemptions']}")
    return lines


def _client(metrics: Json) -> list[str]:
    client = metrics["client"]
    if client["in_process"]:
        if client["cpu_share"] is None:
            return []
        return [f"{'Load generator':{WIDTH}}{client['cpu_share']:.1%} of the time went into it, the rest into the engine"]
    parts = []
    if client["cpu_share"] is not None:
        parts.append(f"{client['cpu_share']:.0%} of a core")
    if client["wait_share"] is not None:
        parts.append(f"{client['wait_share']:.1%} of the time waiting for a CPU")
    if client["send_late_s"] is not None:
        parts.append(f"sent {client['send_late_s']['p99'] * 1e3:.1f} ms late at p99")
    lines = [f"{'Load generator':{WIDTH}}{', '.join(parts)}"] if parts else []
    if client["warning"]:
        lines.append(f"WARNING: {client['warning']}")
    return lines


def counted(count: int, what: str) -> str:
    """A number with its noun: "1 request", "2 requests"."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def format_number(value: float | None, scale: float = 1.0) -> str:
    """For people: four significant digits, at most three decimals; a dash for None."""
    if value is None:
        return "-"
    value *= scale
    for bound, decimals in ((10, 3), (100, 2), (1000, 1)):
        if abs(value) < bound:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"
