"""The OpenAPI document equals its copy in docs, and clients generated from it work."""

from __future__ import annotations

import difflib
import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from app.http.application import create_app
from app.settings import Settings
from tests.app.node import call, install

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs" / "openapi.json"
TYPESCRIPT = Path(__file__).parent / "typescript"


@pytest.fixture(scope="module")
def document() -> Any:
    return create_app(Settings()).openapi()


def operations(document: Any) -> Iterator[tuple[str, Any]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            yield path, operation


def test_document_equals_docs_openapi_json(document: Any) -> None:
    now = json.dumps(document, indent=2, ensure_ascii=False).splitlines()
    kept = DOCUMENT.read_text(encoding="utf-8").splitlines()
    changes = "\n".join(difflib.unified_diff(kept, now, "docs/openapi.json", "the service", lineterm=""))
    assert not changes, f"{changes}\nif this is meant: python -m app.http > docs/openapi.json"


def test_document_has_the_known_operation_ids(document: Any) -> None:
    assert {operation["operationId"] for _, operation in operations(document)} == {
        *("fill_mask", "next_sentence", "sentiment", "classify", "hf_fill_mask", "hf_text_classification"),
        *("predict", "rerank", "tokenize", "v2_server", "v2_live", "v2_ready", "v2_metadata", "v2_model_ready"),
        *("v2_models_fill_mask_infer", "v2_models_next_sentence_infer", "v2_models_sentiment_infer"),
        *("health_live", "health_ready", "info", "metrics"),
    }


def test_document_has_no_name_twice(document: Any) -> None:
    """orval names the result of the operation `fill_mask` `FillMaskResult`."""
    ids = [operation["operationId"].replace("_", "") for _, operation in operations(document)]
    names = [name.lower() for name in document["components"]["schemas"]]
    assert len(set(ids)) == len(ids)
    assert len(set(names)) == len(names)
    assert not {f"{one}result" for one in ids} & set(names)


def test_document_describes_every_operation_and_response(document: Any) -> None:
    for path, operation in operations(document):
        assert operation["summary"], path
        assert operation["description"], path
        assert {tag["name"] for tag in document["tags"]} >= set(operation["tags"])
        for status, response in operation["responses"].items():
            assert response["description"] not in ("", "Successful Response"), (path, status)
            for content in response["content"].values():
                assert "example" in content, (path, status)
                assert content["schema"], (path, status)


def test_document_examples_of_answers_fit_their_schemas(document: Any) -> None:
    for _, operation in operations(document):
        for response in operation["responses"].values():
            for content in response["content"].values():
                jsonschema.validate(content["example"], content["schema"] | {"components": document["components"]})


def test_document_names_the_fields_of_every_answer(document: Any) -> None:
    schemas = document["components"]["schemas"]

    def references(part: Any) -> set[str]:
        return set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(part)))

    for path, operation in operations(document):
        for content in operation["responses"]["200"]["content"].values():
            assert "additionalProperties" not in json.dumps(content["schema"]), path
            found, new = set[str](), references(content["schema"])
            while new:
                found |= new
                new = set[str]().union(*(references(schemas[name]) for name in new)) - found
            open_ended = {name for name in found if "additionalProperties" in json.dumps(schemas[name])}
            assert open_ended <= {"OutputTensor"}, path  # its `parameters` are the protocol's


def test_document_has_no_field_that_is_only_null(document: Any) -> None:
    """openapi-generator makes no Python client of a document with one."""
    for name, schema in document["components"]["schemas"].items():
        for field, kind in schema.get("properties", {}).items():
            assert kind.get("type") != "null", f"{name}.{field}"


def test_document_marks_operations_that_require_a_key(document: Any) -> None:
    assert document["components"]["securitySchemes"].keys() == {"apiKey"}
    assert document["paths"]["/sentiment"]["post"]["security"] == [{}, {"apiKey": []}]  # clients may have a key
    assert "security" not in document["paths"]["/info"]["get"]
    locked = create_app(Settings.read({"BERT_API_KEYS": "secret"})).openapi()
    assert locked["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"
    asking = {path for path, operation in operations(locked) if operation.get("security") == [{"apiKey": []}]}
    assert asking == {path for path, methods in locked["paths"].items() if "post" in methods}
    assert "secret" not in json.dumps(locked)
    closed = create_app(Settings.read({"BERT_API_KEYS": "secret", "BERT_METRICS": "key"})).openapi()["paths"][
        "/metrics"
    ]["get"]
    assert closed["security"] == [{"apiKey": []}]
    assert "401" in closed["responses"]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """A Python package, made from the versioned document by openapi-python-client."""
    directory = tmp_path_factory.mktemp("python")
    (directory / "config.json").write_text('{"post_hooks": []}')
    generator = (sys.executable, "-m", "openapi_python_client", "generate", "--fail-on-warning")
    target = directory / "bert_generated"
    made = call(
        *(*generator, "--meta", "none", "--path", DOCUMENT),
        *("--config", directory / "config.json", "--output-path", target),
        cwd=ROOT,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    sys.path.insert(0, str(directory))
    yield importlib.import_module("bert_generated")
    sys.path.remove(str(directory))


def test_generated_python_client_calls_the_service(generated: ModuleType, url: str) -> None:
    models = importlib.import_module("bert_generated.models")

    def operation(name: str, tag: str = "tasks") -> Any:
        return importlib.import_module(f"bert_generated.api.{tag}.{name}")

    with generated.Client(url) as client:
        fill_mask, sentiment = operation("fill_mask").sync, operation("sentiment").sync
        filled = fill_mask(client=client, body=models.FillMaskRequest("the [MASK]"), x_request_timeout_ms=9000)
        pair = models.TextPair("a title", "a body")
        body = models.SentimentRequest(["good", pair], models.SentimentParameters(truncate=True, top_k=1))
        felt = sentiment(client=client, body=body)
        followed = operation("next_sentence").sync(client=client, body=models.NextSentenceRequest(pair))
        refused = fill_mask(client=client, body=models.FillMaskRequest("no mask"))
        limits = operation("info", "operations").sync(client=client).limits
        hugging = operation("hf_fill_mask", "hugging_face_clients").sync
        bare = hugging(client=client, body=models.HuggingFaceFillMaskRequest("the [MASK]"))
        listed = hugging(client=client, body=models.HuggingFaceFillMaskRequest(["[MASK] [MASK]"]))
    assert filled.results[0].masks[0].predictions[0].sequence == "the the"
    assert [result.predictions[0].label for result in felt.results] == ["POSITIVE"] * 2
    assert followed.results[0].predictions[0].label == "NOT_NEXT"
    assert isinstance(refused, models.Problem)
    assert (refused.code, refused.errors[0].loc) == ("no_mask", ["inputs"])
    assert limits.max_client_batch == 512
    assert bare[0].token_str == listed[0][1][0].token_str == "the"


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """`typescript/client.ts`, compiled against the types that openapi-typescript makes of the document."""
    install(TYPESCRIPT, tmp_path, "the generated TypeScript client")
    tools = tmp_path / "node_modules" / ".bin"
    made = call(tools / "openapi-typescript", DOCUMENT, "-o", "schema.d.ts", cwd=tmp_path)
    assert made.returncode == 0, made.stdout + made.stderr
    checked = call(tools / "tsc", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    return tmp_path / "built" / "client.js"


def test_generated_typescript_client_calls_the_service(compiled: Path, url: str) -> None:
    done = call("node", compiled, url, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "labels": ["POSITIVE", "POSITIVE"],
        "words": ["the", "a"],
        "label": "NOT_NEXT",
        "code": "no_mask",
        "limit": 512,
    }
