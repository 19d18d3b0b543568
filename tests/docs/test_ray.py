"""deploy/ray: both files deploy the same, true to the app; Ray itself reads them in tests/cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from app.settings import Settings
from tests.docs.test_kubernetes import CONTAINER, NEWEST, POD

FOLDER = Path(__file__).parents[2] / "deploy" / "ray"
SERVE: dict[str, Any] = yaml.safe_load((FOLDER / "serve.yaml").read_text())
SERVICE, POLICY = yaml.safe_load_all((FOLDER / "kuberay.yaml").read_text())
GROUPS = [
    SERVICE["spec"]["rayClusterConfig"]["headGroupSpec"],
    *SERVICE["spec"]["rayClusterConfig"]["workerGroupSpecs"],
]


def test_kuberay_deploys_what_serve_deploys() -> None:
    assert yaml.safe_load(SERVICE["spec"]["serveConfigV2"]) == SERVE


def test_variables_are_settings() -> None:
    (application,) = SERVE["applications"]
    names = set(application["runtime_env"]["env_vars"])
    for group in GROUPS:
        (container,) = group["template"]["spec"]["containers"]
        names |= {variable["name"] for variable in container["env"]}
    assert names - {"RAY_USAGE_STATS_ENABLED"} <= {f"BERT_{name.upper()}" for name in Settings.model_fields}


def test_pods_and_policy_fit_the_published_schemas() -> None:
    for group in GROUPS:
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"]}
        assert kubernetes_validate.validate(pod, NEWEST, strict=True) == NEWEST
    assert kubernetes_validate.validate(POLICY, NEWEST, strict=True) == NEWEST


def test_pods_are_locked_down_as_without_ray() -> None:
    for group in GROUPS:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"] == POD["securityContext"]
        assert container["securityContext"] == CONTAINER["securityContext"]
        assert container["volumeMounts"] == CONTAINER["volumeMounts"]


def test_every_node_has_room_for_a_replica() -> None:
    (deployment,) = SERVE["applications"][0]["deployments"]
    needed = deployment["ray_actor_options"]["num_cpus"]
    for group in GROUPS:
        (container,) = group["template"]["spec"]["containers"]
        assert int(container["resources"]["limits"]["cpu"]) >= needed


def test_workers_are_ready_when_their_proxy_answers() -> None:
    """KubeRay deploys to the proxies only when the head is ready, so the head keeps KubeRay's own probe."""
    head, *workers = (group["template"]["spec"]["containers"][0] for group in GROUPS)
    assert "readinessProbe" not in head
    for worker in workers:
        asked = worker["readinessProbe"]["httpGet"]
        assert asked == {"path": "/-/healthz", "port": SERVE["http_options"]["port"]}


def test_policy_finds_the_pods() -> None:
    labels = GROUPS[0]["template"]["metadata"]["labels"]
    assert POLICY["spec"]["podSelector"]["matchLabels"] == labels
    assert POLICY["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": SERVE["http_options"]["port"]}]
