"""OpenAITarget: a server that speaks the OpenAI API, over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from octavo.bench.client.answer import Answer
from octavo.bench.client.chunk import error_message
from octavo.bench.client.connection import Exchange, Pool
from octavo.bench.client.driver import Send
from octavo.bench.live import Live
from octavo.bench.record import RequestRecord
from octavo.bench.workload import BenchRequest
from octavo.errors import ConfigError, TargetError
from octavo.version import __version__

ASK_TIMEOUT_S = 10.0  # for /v1/models and /metrics
ENDPOINTS = {"completions": "/completions", "chat": "/chat/completions"}

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server is. base: up to and with /v1, without a slash at the end. endpoint: a key of ENDPOINTS."""

    base: str
    endpoint: str
    api_key: str | None = field(default=None, repr=False)

    @property
    def url(self) -> SplitResult:
        """Of the requests."""
        return urlsplit(self.base + ENDPOINTS[self.endpoint])

    def ask(self, path: str) -> bytes:
        """GET a path below the server's root. Raises TargetError."""
        headers = {"User-Agent": f"octavo/{__version__}"} | self.authorization()
        address = self.base.removesuffix("/v1") + path
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the load goes directly, too
        try:
            with opener.open(urllib.request.Request(address, headers=headers), timeout=ASK_TIMEOUT_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise TargetError(f"{address} answers HTTP {error.code}: {error_message(error.read())}", error.code) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise TargetError(f"{address} does not answer: {reason}.") from None

    def authorization(self) -> dict[str, str]:
        """The header that carries the key, where there is one."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def parse_url(text: str, endpoint: str | None, api_key: str | None = None, setting: str = "url") -> ServerAddress:
    """From http://host:port, with or without /v1 or the path of an endpoint behind it. Raises ConfigError, naming ``setting``."""
    address = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(address)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise ConfigError(f"{setting} is {text!r}: an address such as http://127.0.0.1:8000 is accepted.")
    base = address.rstrip("/")
    for name, path in sorted(ENDPOINTS.items(), key=lambda item: -len(item[1])):
        if base.endswith("/v1" + path):
            if endpoint not in (None, name):
                raise ConfigError(f"url is {text!r} with endpoint={endpoint}: leave one of the two out.")
            base, endpoint = base.removesuffix(path), name
            break
    return ServerAddress(base=base if base.endswith("/v1") else base + "/v1", endpoint=endpoint or "completions", api_key=api_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What /v1/models says. max_model_len and root (the model as the server was given it): None where it does not say."""

    id: str
    max_model_len: int | None = None
    root: str | None = None


def find_model(address: ServerAddress, name: str | None) -> ServedModel:
    """The model of that name, or the first one. Raises TargetError where there is none, or nobody answers."""
    try:
        answer: Any = msgspec.json.decode(address.ask("/v1/models"))
        cards = [card for card in answer["data"] if isinstance(card.get("id"), str)]
    except TargetError as error:
        if name is not None and error.status is not None:
            return ServedModel(id=name)  # a server without that path
        raise
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
        cards = []
    if name is not None:
        cards = [card for card in cards if card["id"] == name] or [{"id": name}]
    if not cards:
        raise TargetError(f"{address.base}/models names no model: say which with --served-model.")
    length, root = cards[0].get("max_model_len"), cards[0].get("root")
    return ServedModel(
        id=cards[0]["id"],
        max_model_len=length if isinstance(length, int) else None,
        root=root if isinstance(root, str) else None,
    )


class OpenAITarget:
    """Sends requests and reads their answers.

    prompt:     makes a request's prompt: token ids or text (completions), text (chat).
    keep_text:  keep outputs, for servers that do not count tokens.
    ignore_eos: ask for exactly as many tokens as the workload says. A field of vLLM, SGLang, llama.cpp and octavo.
    extra_body: fields that are added to every request, or replace its own.
    """

    def __init__(
        self,
        address: ServerAddress,
        model: str,
        prompt: Callable[[BenchRequest], list[int] | str],
        *,
        timeout_s: float,
        keep_text: bool = False,
        ignore_eos: bool = True,
        extra_body: dict[str, Any] | None = None,
    ):
        self._address = address
        self._model = model
        self._prompt = prompt
        self._timeout_s = timeout_s
        self._keep_text = keep_text
        self._ignore_eos = ignore_eos
        self._extra_body = extra_body or {}

    def payloads(self, requests: Sequence[BenchRequest], run: str) -> dict[int, bytes]:
        """All bytes of each request, by its index, so that nothing but sending is left to do while the load runs.

        run: goes into each request's X-Request-Id, so that the server's log can be joined with the record.
        """
        url = self._address.url
        lines = {
            "Host": url.netloc.rpartition("@")[2],
            "User-Agent": f"octavo/{__version__}",
            "Accept": "text/event-stream",
            "Content-Type": "application/json",
        } | self._address.authorization()
        head = f"POST {url.path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        payloads = {}
        for request in requests:
            body = self._body(request)
            own = f"X-Request-Id: {run}-{request.index}\r\nContent-Length: {len(body)}\r\n\r\n"
            payloads[request.index] = (head + own).encode() + body
        return payloads

    def _body(self, request: BenchRequest) -> bytes:
        prompt = self._prompt(request)
        fields: dict[str, Any] = {"model": self._model}
        if self._address.endpoint == "chat":
            fields["messages"] = [{"role": "user", "content": prompt}]
        else:
            fields["prompt"] = prompt
        fields |= {"max_tokens": request.output_tokens, "temperature": 0, "stream": True}
        fields["stream_options"] = {"include_usage": True}
        if self._ignore_eos:
            fields["ignore_eos"] = True
        fields |= self._extra_body
        return bytes(_encode({name: value for name, value in fields.items() if value is not None}))

    def sender(self, pool: Pool, payloads: dict[int, bytes], live: Live) -> Send:
        """What ``Driver`` sends with. payloads: those of the requests that will be sent."""

        def send(request: BenchRequest, record: RequestRecord, ended: Callable[[], None]) -> None:
            answer = Answer(record, live, self._keep_text)
            pool.send(Exchange(payloads[request.index], answer, self._timeout_s, lambda _: ended()))

        return send
