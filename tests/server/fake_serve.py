"""A server with the scripted engine of ``tests/engine/fake_process.py``: ``python fake_serve.py MODEL ENGINE-MODEL SETTINGS``.

MODEL brings tokenizer and template, ENGINE-MODEL is what the engine is told, SETTINGS are those of ServerConfig as JSON.
"""

import json
import sys
from pathlib import Path

from octavo.config import EngineConfig, ServerConfig
from octavo.engine.client import EngineClient
from octavo.errors import OctavoError
from octavo.models.load import open_checkpoint
from octavo.server.serve import serve

if __name__ == "__main__":
    model, engine_model, settings = sys.argv[1:]
    engine = EngineClient((sys.executable, str(Path(__file__).parents[1] / "engine" / "fake_process.py")))
    try:
        status = serve(EngineConfig(model=engine_model), ServerConfig(**json.loads(settings)), open_checkpoint(model), engine)
    except OctavoError as error:
        print(f"octavo: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)
