"""Every error that octavo raises on purpose. Each message is a sentence: what was wrong, where, what is accepted."""


class OctavoError(Exception):
    """The root: catching it catches everything that octavo refuses or reports."""


class ConfigError(OctavoError, ValueError):
    """A setting that is unknown, malformed, or without effect in this combination. Raised before anything is served."""


class ModelError(OctavoError, ValueError):
    """A checkpoint that is missing, truncated, or of a kind that octavo does not support."""


class RequestError(OctavoError, ValueError):
    """A request that cannot be served as asked; ``param`` names the offending field where there is one."""

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.param = param


class WorkloadError(OctavoError, ValueError):
    """A suite, a trace or a request log that cannot be read or replayed as asked."""


class RecordError(OctavoError, ValueError):
    """A file that is no record of the engine, or one that this version cannot read."""


class TargetError(OctavoError, RuntimeError):
    """What a load is meant for does not answer, or not as needed; ``status``: of its HTTP answer, where there was one."""

    def __init__(self, message: str, status: int | None = None):
        super().__init__(message)
        self.status = status


class EngineDeadError(OctavoError, RuntimeError):
    """The engine process ended; whatever was running there is lost and nothing more will come."""


class EngineError(OctavoError, RuntimeError):
    """The engine failed on one request; it goes on with the others."""


class IntegrityError(OctavoError, RuntimeError):
    """The accounts of the KV cache do not balance. Always a fault of octavo, never of a request; checks and tests raise it."""
