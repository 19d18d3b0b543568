"""deploy/kubernetes.yaml: valid for a cluster, and true to what the service does. No cluster is asked."""

from __future__ import annotations

from typing import Any

import kubernetes_validate
import pytest

from app.http.application import create_app
from app.settings import Settings
from tests.docs.commands import COMPOSE, DOCKERFILE, IMAGES, MANIFEST, container

LAST_BATCH = 11
"""Seconds that uvicorn (1) and the engine (10) wait for after draining."""
OLDEST = "1.30"
NEWEST = kubernetes_validate.latest_version().removesuffix(".0")

(DEPLOYMENT,) = [part for part in MANIFEST if part["kind"] == "Deployment"]
(SERVICE,) = [part for part in MANIFEST if part["kind"] == "Service"]
POD: dict[str, Any] = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINER = container()
PROBES = ["startupProbe", "readinessProbe", "livenessProbe"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("part", MANIFEST, ids=lambda part: part["kind"])
def test_manifest_fits_the_published_schemas(part: dict[str, Any], version: str) -> None:
    assert kubernetes_validate.validate(part, version, strict=True) == version


def test_selectors_find_the_pods() -> None:
    labels = DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
    selectors = [DEPLOYMENT["spec"]["selector"]["matchLabels"], SERVICE["spec"]["selector"]]
    selectors += [c["labelSelector"]["matchLabels"] for c in POD["topologySpreadConstraints"]]
    selectors += [part["spec"]["selector"]["matchLabels"] for part in MANIFEST if part["kind"] == "PodDisruptionBudget"]
    selectors += [part["spec"]["podSelector"]["matchLabels"] for part in MANIFEST if part["kind"] == "NetworkPolicy"]
    assert len(selectors) == 5
    assert all(selector.items() <= labels.items() for selector in selectors)


def test_ports_are_the_services() -> None:
    (port,) = CONTAINER["ports"]
    assert port["containerPort"] == Settings().port
    (exposed,) = SERVICE["spec"]["ports"]
    assert exposed["targetPort"] == port["name"]
    (policy,) = [part["spec"] for part in MANIFEST if part["kind"] == "NetworkPolicy"]
    assert [rule["ports"][0]["port"] for rule in policy["ingress"]] == [port["name"]]
    assert policy["egress"] == []
    assert set(policy["policyTypes"]) == {"Ingress", "Egress"}


@pytest.mark.parametrize("probe", PROBES)
def test_probes_ask_addresses_that_exist(probe: str) -> None:
    asked = CONTAINER[probe]["httpGet"]
    assert asked["path"] in create_app(Settings()).openapi()["paths"]
    assert asked["port"] == CONTAINER["ports"][0]["name"]


def test_a_busy_service_is_not_restarted_and_a_draining_one_gets_no_requests() -> None:
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/health/ready"


def test_grace_covers_pause_and_draining_and_the_last_batch() -> None:
    pause = CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert POD["terminationGracePeriodSeconds"] > pause + given().drain_seconds + LAST_BATCH
    readiness = CONTAINER["readinessProbe"]
    assert given().drain_seconds >= readiness["periodSeconds"] * readiness["failureThreshold"]


def test_variables_are_settings() -> None:
    names = {variable["name"] for variable in CONTAINER["env"]}
    assert names <= {f"BERT_{name.upper()}" for name in Settings.model_fields}
    assert given().log_format == "json"


def test_api_keys_come_from_a_secret_that_must_exist() -> None:
    (keys,) = [variable for variable in CONTAINER["env"] if variable["name"] == "BERT_API_KEYS"]
    assert keys["valueFrom"] == {"secretKeyRef": {"name": "bert-api-keys", "key": "keys"}}


def given() -> Settings:
    """The settings that the manifest itself gives."""
    return Settings.read({variable["name"]: variable["value"] for variable in CONTAINER["env"] if "value" in variable})


def test_service_links_cannot_set_the_port() -> None:
    assert SERVICE["metadata"]["name"] == "bert"
    assert POD["enableServiceLinks"] is False


def test_container_is_locked_down_as_in_compose() -> None:
    security = CONTAINER["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["securityContext"]["runAsNonRoot"]  # the user is that of the image, or of the cluster's namespace
    assert "USER 10001:0\n" in DOCKERFILE
    assert [mount["mountPath"] for mount in CONTAINER["volumeMounts"]] == COMPOSE["x-locked"]["tmpfs"]


def test_image_is_one_that_is_built_here() -> None:
    assert CONTAINER["image"] in IMAGES


def test_cpu_limit_sets_the_threads() -> None:
    """Without a limit the service would take a thread per CPU of the node."""
    resources = CONTAINER["resources"]
    assert resources.keys() == {"limits"}  # Kubernetes takes them for the requests
    assert resources["limits"]["cpu"] == "2"
    assert resources["limits"]["memory"].endswith("Gi")
