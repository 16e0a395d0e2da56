"""How long a start takes and what it holds: from the process's start to its first token, and its memory without file pages.

    python benchmarks/start.py [MODEL ...] [--rounds 5]

Each MODEL (the default one, where none is given) is started anew in turn, with `octavo generate`; its files are in the page cache
after the first start, which is not counted. "first token" is the time until text arrives on the pipe. "memory" is the largest
anonymous and shared resident set seen (sampled every 10 ms), "beside weights" what of it is not packed weights: the interpreter,
buffers, and the keys and values of the few tokens that were computed. Medians, with the least and the greatest.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

MIB = 2**20
PROMPT = "The capital of France is"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODEL", nargs="*", default=["smollm2-135m"])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float, float]]] = {model: [] for model in args.models}
    for number in range(args.rounds + 1):
        for model in args.models:
            start = start_once(model)
            if number:
                found[model].append(start)
    for model, starts in found.items():
        seconds, memory, weights = zip(*starts, strict=True)
        beside = [m - w for m, w in zip(memory, weights, strict=True)]
        print(f"{model}: first token after {spread(seconds, 's', 2)}; memory {spread(memory, 'MiB', 0)},", end=" ")
        print(f"of it weights {weights[0]:.0f} MiB, beside weights {spread(beside, 'MiB', 0)}")


def start_once(model: str) -> tuple[float, float, float]:
    """Seconds to the first token, MiB of memory at most, MiB of weights."""
    command = [sys.executable, "-m", "octavo", "generate", model, "-p", PROMPT, "--max-tokens", "16", "--verbose"]
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        messages: list[bytes] = []
        reader = threading.Thread(target=lambda: messages.append(process.stderr.read()))  # type: ignore[union-attr]
        watcher = Watcher(process.pid)
        reader.start()
        watcher.start()
        first = process.stdout.read(1)
        seconds = time.monotonic() - begin
        process.stdout.read()
        process.wait()
        reader.join()
        watcher.join()
    text = messages[0].decode(errors="replace")
    weights = re.search(r"^weights: ([\d.]+) (MiB|GiB)", text, re.MULTILINE)
    if not first or process.returncode or not weights:
        sys.exit(f"{model} did not start:\n{text}")
    return seconds, watcher.most / MIB, float(weights[1]) * (1024 if weights[2] == "GiB" else 1)


class Watcher(threading.Thread):
    """The largest resident set of a process that is not pages of files, in bytes, until it ends."""

    def __init__(self, pid: int):
        super().__init__()
        self.most = 0
        self._status = Path(f"/proc/{pid}/status")

    def run(self) -> None:
        while True:
            try:
                sizes = re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", self._status.read_text(), re.MULTILINE)
            except OSError:
                return
            if not sizes:
                return  # it has ended
            self.most = max(self.most, 1024 * sum(map(int, sizes)))
            time.sleep(0.01)


def spread(values: tuple[float, ...] | list[float], unit: str, digits: int) -> str:
    """The median, least and greatest of some values."""
    return f"{statistics.median(values):.{digits}f} {unit} ({min(values):.{digits}f}-{max(values):.{digits}f})"


if __name__ == "__main__":
    main()
