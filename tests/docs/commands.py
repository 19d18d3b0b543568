"""What the shell commands of the documentation name exists: targets, flags, variables, services, files."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from opentelemetry.sdk import environment_variables

from app.settings import PREFIX, Settings, parse_flags
from bert_client.command import main as cli
from training.command import _parser as training_parser

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
MANIFEST: list[dict[str, Any]] = list(
    yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text(encoding="utf-8"))
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
IMAGES = {service["image"] for service in COMPOSE["services"].values()}

_ASSIGNMENT = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)", re.DOTALL)


def check(command: str) -> None:
    """Fail if a command names something that is not there. A program that is not known here fails too."""
    words = shlex.split(command)
    given: dict[str, str] = {}
    while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
        given[assigned[1]] = assigned[2]
        words.pop(0)
    program, arguments = words[0], words[1:]
    for name in given:
        assert _is_setting(name) or _is_known_variable(name), f"{name} is not a setting"
    Settings.read(given)
    assert program in _PROGRAMS, f"teach tests/docs/commands.py what {program} is"
    _PROGRAMS[program](arguments, given)


def _is_setting(name: str) -> bool:
    return name.startswith(PREFIX) and name.removeprefix(PREFIX).lower() in Settings.model_fields


def _is_known_variable(name: str) -> bool:
    if name.startswith("OTEL_"):
        return hasattr(environment_variables, name)
    return f"${{{name}:-" in COMPOSE_TEXT or re.search(rf"^{name} \?=", MAKEFILE, re.MULTILINE) is not None


def _make(arguments: list[str], _: dict[str, str]) -> None:
    targets = [word for word in arguments if "=" not in word]
    assert targets
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", MAKEFILE, re.MULTILINE), f"no target {target}"


def _bert_serve(arguments: list[str], given: dict[str, str]) -> None:
    Settings.read(given, parse_flags([argument for argument in arguments if argument != "--help"]))


def _bert_train(arguments: list[str], _: dict[str, str]) -> None:
    training_parser().parse_known_args(arguments)  # overrides of the recipe are left over


def _bert(arguments: list[str], given: dict[str, str]) -> None:
    cli._parser(given).parse_args(arguments)


def _python(arguments: list[str], _: dict[str, str]) -> None:
    assert arguments[0] == "-m"
    assert importlib.util.find_spec(arguments[1]), arguments[1]


def _pip(arguments: list[str], _: dict[str, str]) -> None:
    assert arguments[0] == "install"
    for extra in re.findall(r"\[([\w,]+)\]", " ".join(arguments)):
        assert set(extra.split(",")) <= PROJECT["optional-dependencies"].keys()


def _docker(arguments: list[str], given: dict[str, str]) -> None:
    if arguments[0] == "compose":
        _compose(arguments[1:])
    elif arguments[0] == "build":
        for option, value in itertools.pairwise(arguments):
            if option == "--target":
                assert re.search(rf"^FROM \S+ AS {value}$", DOCKERFILE, re.MULTILINE), value
            if option == "--build-arg":
                assert re.search(rf"^ARG {value.partition('=')[0]}=", DOCKERFILE, re.MULTILINE), value
            if option == "--tag":
                assert value in IMAGES, value
    else:
        assert arguments[0] == "run", arguments
        assert arguments[-1] in IMAGES, arguments[-1]
        passed = [value for option, value in itertools.pairwise(arguments) if option == "--env"]
        Settings.read({name: value for name, _, value in (pair.partition("=") for pair in passed)})
        assert all(_is_setting(pair.partition("=")[0]) for pair in passed), passed


def _compose(arguments: list[str]) -> None:
    services = COMPOSE["services"]
    profiles = {profile for service in services.values() for profile in service.get("profiles", [])}
    while arguments[0] == "--profile":
        assert arguments[1] in profiles, arguments[1]
        arguments = arguments[2:]
    verb, *names = arguments
    assert verb in {"up", "build", "down", "logs", "exec"}, verb
    if verb == "exec":
        assert names[1:] == ["sh", "-c", "kill -HUP 1"], names
        del names[1:]
    unknown = {name for name in names if not name.startswith("-")} - services.keys()
    assert not unknown, unknown


def _kubectl(arguments: list[str], _: dict[str, str]) -> None:
    named = {f"{part['kind'].lower()}/{part['metadata']['name']}" for part in MANIFEST}
    if arguments[:2] == ["apply", "-f"]:
        assert (ROOT / arguments[2]).is_file()
    elif arguments[:3] == ["create", "secret", "generic"]:
        (variable,) = [v for v in container()["env"] if "secretKeyRef" in v.get("valueFrom", {})]
        reference = variable["valueFrom"]["secretKeyRef"]
        assert arguments[3] == reference["name"]
        assert arguments[4].startswith(f"--from-file={reference['key']}=")
    else:
        assert arguments[0] in {"rollout", "port-forward", "logs", "scale"}, arguments
        assert any(word in named for word in arguments), arguments


def _helm(arguments: list[str], _: dict[str, str]) -> None:
    chart = ROOT / "deploy" / "helm"
    assert arguments[:2] == ["upgrade", "--install"], arguments
    assert ROOT / arguments[3] == chart
    values = yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8"))
    for option, value in itertools.pairwise(arguments):
        if option == "--set":
            found = values
            for name in value.partition("=")[0].split("."):
                assert name in found, value
                found = found[name]


def _serve(arguments: list[str], _: dict[str, str]) -> None:
    assert arguments[0] == "deploy", arguments
    assert (ROOT / arguments[1]).is_file()


def _openapi_generator(arguments: list[str], _: dict[str, str]) -> None:
    """Mappings name schemas of the document, or titles of unions in them; what follows `_` is the generator's."""
    document = (ROOT / "docs" / "openapi.json").read_text(encoding="utf-8")
    names = {*json.loads(document)["components"]["schemas"], *re.findall(r'"title": "(\w+)"', document)}
    mapped = [value for option, value in itertools.pairwise(arguments) if option == "--schema-mappings"]
    unknown = {name.partition("_")[0] for name in re.findall(r"(\w+)=", " ".join(mapped))} - names
    assert not unknown, f"no schema {', '.join(sorted(unknown))}"


def container() -> dict[str, Any]:
    """The one container of the manifest."""
    (deployment,) = [part for part in MANIFEST if part["kind"] == "Deployment"]
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def _anything(arguments: list[str], _: dict[str, str]) -> None:
    """Other people's programs, or those that another test runs: curl, torchrun."""


_PROGRAMS: dict[str, Callable[[list[str], dict[str, str]], None]] = {
    "bert": _bert,
    "bert-serve": _bert_serve,
    "bert-train": _bert_train,
    "cd": _anything,
    "curl": _anything,
    "docker": _docker,
    "for": _anything,
    "helm": _helm,
    "kubectl": _kubectl,
    "make": _make,
    "openapi-generator-cli": _openapi_generator,
    "pip": _pip,
    "py-spy": _anything,
    "python": _python,
    "serve": _serve,
    "torchrun": _anything,
}
