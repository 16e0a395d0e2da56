from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints import tiny_llama
from tests.server.running import Running, running


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint: the server takes its tokenizer and chat template, the scripted engine nothing."""
    return tiny_llama(tmp_path_factory.mktemp("checkpoint") / "tiny")


@pytest.fixture(scope="session")
def server(model: Path) -> Iterator[Running]:
    """A server with the scripted engine, for tests that leave it as they found it."""
    with running(model, served_model_name="tiny") as one:
        yield one
