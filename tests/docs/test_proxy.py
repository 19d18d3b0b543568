"""The nginx configurations of docs/deployment.md and of deploy/nginx: their figures fit the service, and a real nginx
runs them."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
import yaml

from app.settings import Settings
from tests.app.process import WITHOUT_TORCH, running, wait_until
from tests.docs import blocks
from tests.ports import free_port

(PROXY,) = [block.text for block in blocks.of("nginx")]
REPLICAS = (Path(__file__).parents[2] / "deploy" / "nginx" / "replicas.conf.template").read_text()
PATIENCE = 120


def value(configuration: str, directive: str) -> str:
    found = re.search(rf"^\s*{directive} ([^;]+);", configuration, re.MULTILINE)
    assert found is not None, directive
    return found[1]


@pytest.mark.parametrize("configuration", [PROXY, REPLICAS], ids=["proxy", "replicas"])
def test_figures_fit_the_settings(configuration: str) -> None:
    settings = Settings()
    assert int(value(configuration, "client_max_body_size").removesuffix("m")) * 1024**2 == settings.max_body_bytes
    assert int(value(configuration, "proxy_read_timeout").removesuffix("s")) * 1000 > settings.request_timeout_ms
    if configuration == REPLICAS:  # a request that reached its deadline is not repeated
        assert (
            int(value(configuration, "proxy_next_upstream_timeout").removesuffix("s")) * 1000
            <= settings.request_timeout_ms
        )
    assert configuration.count("{") == configuration.count("}")


def test_upstream_of_the_proxy_fits_the_settings() -> None:
    settings = Settings()
    assert int(value(PROXY, "keepalive_timeout").removesuffix("s")) < settings.keep_alive_seconds
    assert value(PROXY, "server") == f"127.0.0.1:{settings.port}"


def test_replicas_have_the_name_and_port_that_compose_gives_them() -> None:
    services = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text())["services"]
    assert value(REPLICAS, r"set \$replicas") in services
    assert value(REPLICAS, "proxy_pass") == f"http://$replicas:{Settings().port}"
    assert services["nginx"]["ports"] == [f"${{PORT:-8000}}:{value(REPLICAS, 'listen')}"]
    assert value(REPLICAS, r"set \$replicas") in services["bert-cuda-replica"]["networks"]["default"]["aliases"]
    assert services["nginx"]["depends_on"].keys() == {"bert-replica", "bert-cuda-replica"}
    for name in ("bert-replica", "bert-cuda-replica"):
        assert "ports" not in services[name]  # several cannot have the same port of the machine


def test_resolver_of_the_replicas_is_the_containers() -> None:
    """nginx's image has a script that puts it into templates: Docker's and Podman's DNS servers differ."""
    service = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text())["services"]["nginx"]
    assert service["environment"] == {"NGINX_ENTRYPOINT_LOCAL_RESOLVERS": "1"}
    assert value(REPLICAS, "resolver").split()[0] == "${NGINX_LOCAL_RESOLVERS}"
    assert re.findall(r"\$\{?[A-Z]\w*", REPLICAS) == ["${NGINX_LOCAL_RESOLVERS"]  # else the image replaces more
    (mounted,) = service["volumes"]
    assert mounted.split(":")[1:] == ["/etc/nginx/templates/default.conf.template", "ro"]
    assert any(place.startswith("/etc/nginx/conf.d:") for place in service["tmpfs"])  # the rest is read-only


@contextmanager
def nginx(folder: Path, port: int, servers: str) -> Iterator[None]:
    """nginx with these `server` blocks, until the context ends."""
    command = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(command).exists():
        pytest.skip("needs nginx (a Debian package)")
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}} http {{ access_log off;"
        f"client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;"
        f"fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;"
        f"\n{servers}\n}}"
    )
    with subprocess.Popen([command, "-e", "stderr", "-c", str(folder / "nginx.conf")]) as process:
        try:
            _wait(port, process)
            yield
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory, pretrained: Path, sentiment: Path) -> Iterator[httpx.Client]:
    """A client of the service behind the documented nginx, over TLS with a certificate of its own."""
    openssl = shutil.which("openssl")
    if not openssl:
        pytest.skip("needs openssl (a Debian package)")
    folder = tmp_path_factory.mktemp("nginx")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", "privkey.pem", "-out", "fullchain.pem"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=PATIENCE)
    checkpoints = {"BERT_PRETRAINED": str(pretrained), "BERT_SENTIMENT": str(sentiment)}
    with running(checkpoints | WITHOUT_TORCH) as service:
        service.until_ready()
        port = free_port()
        block = PROXY.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")
        block = block.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl").replace("/etc/nginx/tls", str(folder))
        with nginx(folder, port, block):
            trusted = ssl.create_default_context(cafile=folder / "fullchain.pem")
            with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=trusted, timeout=PATIENCE) as client:
                yield client


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, "nginx ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("nginx does not listen")


def test_tasks_answer_through_the_proxy(proxied: httpx.Client) -> None:
    response = proxied.post("/sentiment", json={"inputs": "good"})
    assert response.status_code == 200
    assert re.fullmatch(r"[0-9a-f]{32}", response.headers["x-request-id"])
    assert "queue;dur=" in response.headers["server-timing"]


def test_request_id_of_the_caller_passes_the_proxy(proxied: httpx.Client) -> None:
    response = proxied.post("/sentiment", json={"inputs": "good"}, headers={"X-Request-ID": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"


def test_pages_answer_and_metrics_do_not(proxied: httpx.Client) -> None:
    assert proxied.get("/").status_code == 200
    assert proxied.get("/info").json()["status"] == "ready"
    assert proxied.get("/metrics").status_code == 404
    assert proxied.get("/health/live").status_code == 404
    assert proxied.get("/v2/health/ready").status_code == 404


def test_too_large_a_body_is_stopped_by_the_proxy(proxied: httpx.Client) -> None:
    response = proxied.post("/sentiment", json={"inputs": "x" * (Settings().max_body_bytes + 1)})
    assert response.status_code == 413
    assert not response.headers["content-type"].startswith("application/problem+json")


@contextmanager
def unreachable(address: str, port: int) -> Iterator[None]:
    """An address that answers no packet of a new connection, as that of a stopped machine: its queue is full."""
    with socket.create_server((address, port), backlog=0), socket.create_connection((address, port)):
        yield


class DNS(threading.Thread):
    """A DNS server that answers every question with `addresses`."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.addresses: list[str] = []
        self.socket = socket.socket(type=socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    def run(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                query, sender = self.socket.recvfrom(512)
                question = query[12 : query.index(b"\0", 12) + 5]
                found = self.addresses if question[-4:-2] == b"\0\1" else []  # A, not AAAA
                records = [b"\xc0\x0c\0\1\0\1" + struct.pack("!IH", 1, 4) + socket.inet_aton(a) for a in found]
                head = query[:2] + b"\x81\x80\0\1" + struct.pack("!H", len(found)) + b"\0\0\0\0"
                self.socket.sendto(head + question + b"".join(records), sender)


def test_replicas_that_come_and_go_leave_no_request_unanswered(
    tmp_path: Path, pretrained: Path, save_sentiment: Callable[[str], Path]
) -> None:
    """Each answer names the checkpoint, and so the replica."""
    dns, port = DNS(), free_port()
    environ = WITHOUT_TORCH | {"BERT_PRETRAINED": str(pretrained), "BERT_THREADS": "1"}
    with closing(dns.socket), running(environ | {"BERT_SENTIMENT": str(save_sentiment("first"))}) as first:
        first.until_ready()
        block = REPLICAS.replace("${NGINX_LOCAL_RESOLVERS} valid=5s", f"127.0.0.1:{dns.port} valid=1s ipv6=off")
        block = block.replace("listen 8080", f"listen 127.0.0.1:{port}").replace(":8000", f":{first.port}")
        block = block.replace("proxy_connect_timeout 2s", "proxy_connect_timeout 200ms")
        place = {"BERT_HOST": "127.0.0.2", "BERT_PORT": str(first.port)}
        second_environ = environ | place | {"BERT_SENTIMENT": str(save_sentiment("second"))}
        with (
            nginx(tmp_path, port, block),
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
        ):

            def answered_by() -> str:
                answer = client.post("/sentiment", json={"inputs": "good"})
                assert answer.status_code == 200, answer.text
                return str(answer.json()["model"])

            dns.addresses = ["127.0.0.1"]
            dns.start()
            assert {answered_by() for _ in range(10)} == {"first"}
            with running(second_environ) as second:
                dns.addresses = ["127.0.0.1", "127.0.0.2"]  # before it listens, and before its models are loaded
                wait_until(lambda: answered_by() == "second")
                assert {answered_by() for _ in range(30)} == {"first", "second"}
                second.process.kill()
                second.process.wait()
            assert {answered_by() for _ in range(30)} == {"first"}
            with unreachable("127.0.0.2", first.port):
                assert {answered_by() for _ in range(4)} == {"first"}
            assert client.get("/metrics").status_code == 404
            assert client.get("/health/live").status_code == 404
            assert client.get("/v2/health/live").status_code == 404
