"""capture_log: an existing log of OpenAI requests, as a capture. docs/workloads.md says what lines are accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from octavo.bench.capture.answer import AnswerReader
from octavo.bench.capture.model import TextSide
from octavo.bench.capture.prompt import Prompt, PromptReader
from octavo.bench.capture.summary import summary
from octavo.bench.capture.writer import CaptureWriter
from octavo.bench.traces import fields
from octavo.bench.traces.source import DamagedError, TraceSource
from octavo.errors import WorkloadError

BODIES = ("body", "request")  # where a line may keep the request; else the line is the request
TIMES = ("timestamp", "time", "ts", "created", "arrival_s")
# A number is a time in the unit in which it lies between 1973 and the far future; smaller ones are seconds from any beginning.
UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))

_encode = msgspec.json.Encoder().encode


def capture_log(log: Path, output: Path, text: TextSide) -> int:
    """Convert ``log`` to ``output``. Returns the exit status.

    Raises WorkloadError where the log cannot be read or has no line that can be used, or the output cannot be made.
    """
    source = TraceSource(log)
    reader = PromptReader(text.tokenizer, text.template)
    try:
        rows = list(_rows(source, reader))
    except OSError as error:
        raise WorkloadError(f"log {log} cannot be read: {error.strerror or error}.") from None
    if not rows:
        raise WorkloadError(f"log {log} has no request that can be used: {source.first or 'it is empty'}.")
    times = [arrival for arrival, *_ in rows if arrival is not None]
    if times and len(times) < len(rows):  # in a log with times a line without one cannot be placed
        source.damaged += len(rows) - len(times)
        rows = [row for row in rows if row[0] is not None]
    start = min(times, default=0.0)
    writer = CaptureWriter(output)
    try:
        for arrival, prompts, prompt_tokens, output_tokens in rows:
            writer.add(None if arrival is None else arrival - start, prompts, prompt_tokens, output_tokens)
    finally:
        writer.close()
    if source.damaged:
        writer.left_out[f"the first of them in {source.first}" if source.first else "lines without a time"] = source.damaged
    print(f"{text.told}\n{summary(writer, output)}")
    return 0


def _rows(source: TraceSource, reader: PromptReader) -> Iterator[tuple[float | None, list[Prompt], int | None, tuple[int, bool]]]:
    for number, line in source.lines():
        try:
            value = fields.json_object(line)
            body = next((value[name] for name in BODIES if isinstance(value.get(name), dict)), value)
            prompt_tokens, output_tokens = _lengths(value, body, reader)
            yield _time(value), reader.read(body), prompt_tokens, output_tokens
        except DamagedError as error:
            source.report(number, str(error))


def _lengths(value: Mapping[str, Any], body: Mapping[str, Any], reader: PromptReader) -> tuple[int | None, tuple[int, bool]]:
    """Prompt tokens where the line knows them, output tokens and whether they are an estimate."""
    answer = AnswerReader("application/json", keep_text=reader.tokenizer is not None)
    answer.feed(_encode(_answer(value)))
    answer.close()
    if answer.failed:
        raise DamagedError("it is a request that failed")
    output, estimated = answer.output_tokens(reader.tokenizer)
    if not output:
        asked = body.get("max_completion_tokens", body.get("max_tokens"))
        if asked is None:
            raise DamagedError("nothing says how long its output was: usage, response or max_tokens is needed")
        output, estimated = fields.tokens(asked, "max_tokens"), True
    return answer.prompt_tokens, (output, estimated)


def _answer(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer that the line holds, in OpenAI's form."""
    response = value.get("response")
    if isinstance(response, dict):
        inner = response.get("body")  # as OpenAI's batch API writes it
        return inner if isinstance(inner, dict) else response
    if isinstance(response, str):
        return {"choices": [{"text": response}], "usage": value.get("usage")}
    return {"usage": value.get("usage")}


def _time(value: Mapping[str, Any]) -> float | None:
    """Seconds; None where the line has no time."""
    for name in TIMES:
        given = value.get(name)
        if given is None:
            continue
        try:
            number = fields.seconds(given, name)
        except DamagedError:
            return fields.date(given, name)
        return next((number / unit for least, unit in UNITS if abs(number) >= least), number)
    return None
