"""deploy/prometheus/alerts.yml, evaluated by the real `promtool`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yml"
RULES = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
}
SERVICE = {"job": "bert", "instance": "a"}
POD = {"job": "kube-state-metrics", "instance": "k", "container": "bert", "pod": "bert-1"}
STARTED, RESTARTS = "bert_start_time_seconds", "kube_pod_container_status_restarts_total"


def test_restarts_as_rare_as_those_of_kubernetes_fit_the_window() -> None:
    """It waits five minutes before a restart, and loading may take as long."""
    found = re.findall(r"\[(\d+)h\]\) > (\d+)", RULES["BertRestarts"]["expr"])
    assert len(found) == 2
    for hours, changes in found:
        assert int(hours) * 60 / (int(changes) + 1) > 10


def lives(minutes: int, gap: int = 0) -> str:
    """An hour of a number that changes with each life of a process: every N minutes, of which it is gone for `gap`."""
    gone = f"_x{gap - 1} " if gap else ""
    return "".join(f"{life}+0x{minutes - gap - 1} {gone}" for life in range(1, 61 // minutes + 1)).strip()


@pytest.mark.parametrize(
    ("alert", "metric", "labels", "hour", "seen"),
    [
        ("BertRestarts", STARTED, SERVICE, lives(2), True),
        ("BertRestarts", STARTED, SERVICE, lives(5), True),
        ("BertRestarts", STARTED, SERVICE, lives(10, gap=5), True),
        ("BertRestarts", STARTED, SERVICE, lives(20), False),
        ("BertRestarts", STARTED, SERVICE, lives(60), False),
        ("BertRestarts", RESTARTS, POD, lives(5), True),
        ("BertRestarts", RESTARTS, POD, lives(30), False),
        ("BertRestarts", RESTARTS, POD | {"container": "other"}, lives(5), False),
        ("BertDown", "up", SERVICE, "0+0x60", True),  # it ends before Prometheus reads any of its metrics
        ("BertDown", "up", SERVICE, "1+0x60", False),
    ],
)
def test_alert_of_an_hour(
    tmp_path: Path, alert: str, metric: str, labels: dict[str, str], hour: str, seen: bool
) -> None:
    promtool = shutil.which("promtool")
    if not promtool:
        pytest.skip("needs promtool (of Prometheus, also a Debian package)")
    rule = RULES[alert]
    summaries = {
        "BertDown": f"{labels['instance']} does not answer.",
        "BertRestarts": f"{labels.get('pod', labels['instance'])} restarts over and over.",
    }
    expected = {
        "exp_labels": labels | rule["labels"],
        "exp_annotations": rule["annotations"] | {"summary": summaries[alert]},
    }
    pairs = ",".join(f'{name}="{value}"' for name, value in labels.items())
    case = {
        "interval": "1m",
        "input_series": [{"series": f"{metric}{{{pairs}}}", "values": hour}],
        "alert_rule_test": [{"alertname": alert, "eval_time": "59m", "exp_alerts": [expected] if seen else []}],
    }
    file = tmp_path / "test.json"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [case]}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
