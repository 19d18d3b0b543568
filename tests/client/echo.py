"""A service on a real port whose label for each text is the text itself, so that a mixed-up answer shows."""

from __future__ import annotations

import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

Refuse = Callable[[list[Any]], int | tuple[int, str] | dict[str, Any] | None]
CUT = (0, "")
"""As a refusal: the connection ends without an answer."""

LIMITS = {
    "max_batch_tokens": 4096,
    "max_queue_tokens": 65536,
    "max_client_batch": 8,
    "max_body_bytes": 100_000,
    "request_timeout_ms": 1000,
}


def problem_document(status: int, code: str, detail: str, errors: dict[int, str]) -> dict[str, Any]:
    """A problem that names inputs: `errors` has a message for each, by its index."""
    faults = [{"message": message, "loc": ["inputs", index]} for index, message in errors.items()]
    return {"status": status, "code": code, "detail": detail, "request_id": "r1", "errors": faults}


def invalid_inputs(errors: dict[int, str], named: int = 100) -> dict[str, Any] | None:
    """The service's refusal of a request with invalid inputs, the first `named` of which it names; None without any."""
    shown = dict(list(errors.items())[:named])
    return problem_document(422, "no_mask", next(iter(shown.values())), shown) if shown else None


def process_ended(detail: str = "the inference process ended") -> dict[str, Any]:
    """The service's refusal of a request whose batch ended the inference process."""
    return problem_document(500, "inference_failed", detail, {})


class Echo(ThreadingHTTPServer):
    """Answers each request, or refuses it with what `refuse` returns: a status with or without the content, in
    the manner of a gateway, or a problem document."""

    request_queue_size = 64

    def __init__(self, refuse: Refuse = lambda _: None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.refuse = refuse
        self.limits = dict(LIMITS)
        self.hides_info = False
        self.info_problem: dict[str, Any] | None = None
        self.models: list[dict[str, Any]] = []
        self.paths: list[str] = []
        """Targets of all requests. A client that uses this server as its proxy sends the whole address."""
        self.headers: list[Message] = []
        """Headers of all requests with inputs."""
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that ends may reset its connections."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Echo

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.server.hides_info:
            self.answer(404, "<html>not found</html>")
            return
        if self.server.info_problem:
            self.answer(self.server.info_problem["status"], json.dumps(self.server.info_problem))
            return
        info = {"status": "ready", "limits": self.server.limits, "models": self.server.models}
        self.answer(200, json.dumps(info))

    def do_POST(self) -> None:
        self.server.paths.append(self.path)
        self.server.headers.append(self.headers)
        inputs = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["inputs"]
        if refusal := self.server.refuse(inputs):
            if refusal == CUT:
                self.close_connection = True
            elif isinstance(refusal, tuple):
                self.answer(*refusal)
            elif isinstance(refusal, dict):
                self.answer(refusal["status"], json.dumps(refusal))
            else:
                self.answer(refusal, "<html>refused</html>")
            return
        labels = [one if isinstance(one, str) else f"{one['text']}|{one['text_pair']}" for one in inputs]
        results = [{"predictions": [{"label": label, "score": 1}], "tokens": 3, "truncated": False} for label in labels]
        self.answer(200, json.dumps({"model": "m", "results": results}))

    def do_CONNECT(self) -> None:
        self.server.paths.append(self.path)
        status = self.server.refuse([])
        self.answer(status if isinstance(status, int) else 405, "<html>refused</html>")

    def answer(self, status: int, content: str) -> None:
        body = content.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *arguments: object) -> None:
        pass


@contextmanager
def serve(refuse: Refuse = lambda _: None, port: int = 0) -> Iterator[Echo]:
    """Serve until the end of the block."""
    with Echo(refuse, port) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
        try:
            yield server
        finally:
            server.shutdown()


@contextmanager
def serve_tls(folder: Path) -> Iterator[Echo]:
    """Serve https:// to clients with the same certificate as the server: `cert.pem` and `key.pem` in the folder."""
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem"]
    name = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*new, *name], cwd=folder, capture_output=True, check=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "cert.pem"))
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    with serve() as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.url = f"https://localhost:{server.server_port}"
        yield server
