"""docker-compose.yml and what it mounts, without an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.observability.metrics import Metrics
from app.settings import Settings
from tests.docs.test_kubernetes import LAST_BATCH

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DASHBOARD = ROOT / "deploy/grafana/dashboards/bert.json"
ALERTS = ROOT / "deploy/prometheus/alerts.yml"


def test_compose_file_fits_the_published_schema() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        "docker-compose.yml",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_plain_up_starts_the_service_on_cpu_only() -> None:
    assert [name for name, service in SERVICES.items() if "profiles" not in service] == ["bert"]
    assert SERVICES["bert"]["build"]["target"] == "cpu"


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_locked_down_and_limited(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["deploy"]["resources"]["limits"]["memory"]
    assert service["restart"]


@pytest.mark.parametrize("name", ["bert", "bert-replica", "bert-cuda", "bert-cuda-replica"])
def test_stop_waits_longer_than_the_service_drains(name: str) -> None:
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > Settings().drain_seconds + LAST_BATCH


def test_every_setting_can_be_given_to_the_container() -> None:
    names = SERVICES["bert"]["environment"]
    given = {name.removeprefix("BERT_").lower() for name in names if not name.startswith("OTEL_")}
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in names
    assert given == Settings.model_fields.keys() - {"host", "port"}


def test_targets_and_mounted_files_exist() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    targets = re.findall(r"^FROM \S+ AS (\S+)$", dockerfile, re.MULTILINE)
    assert targets[-1] == "cpu"
    for service in SERVICES.values():
        assert service.get("build", {"target": "cpu"})["target"] in targets
        for volume in service.get("volumes", []):
            if isinstance(volume, str) and volume.startswith("./"):
                assert (ROOT / volume.partition(":")[0]).exists()


def _metrics() -> set[str]:
    metrics = Metrics()
    metrics.latency("sentiment", {"tokenize": 0, "queue": 0, "inference": 0})
    metrics.answered("sentiment", 200, 0)
    metrics.inference_time.read = lambda: {0: (0.0, 0.0)}
    return set(re.findall(r"^(bert_\w+)", metrics.render().decode(), re.MULTILINE))


def test_dashboard_and_alerts_ask_for_metrics_that_exist() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    asked += [rule["expr"] for group in groups for rule in group["rules"]]
    names = set(re.findall(r"\bbert_\w+", " ".join(asked)))
    assert names <= _metrics()
    shown = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in names}
    told = {re.sub(r"_(total|bucket|sum|count)$", "", name) for name in _metrics()}
    assert shown == told
