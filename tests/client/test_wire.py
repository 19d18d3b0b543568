"""The shapes that the client reads are those of the service's OpenAPI document."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from bert_client import results, wire

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
SCHEMAS = DOCUMENT["components"]["schemas"]
SHAPES = [shape for shape in vars(wire).values() if dataclasses.is_dataclass(shape)]


def schema(shape: Any) -> Any:
    """The JSON schema of a dataclass, its references being those of the OpenAPI document."""
    return TypeAdapter(shape).json_schema(ref_template="#/components/schemas/{model}")


def without_texts(schemas: dict[str, Any]) -> dict[str, Any]:
    """Schemas of properties, without defaults and the keywords that only people read."""
    texts = ("title", "description", "examples", "default")
    return {name: {key: value for key, value in found.items() if key not in texts} for name, found in schemas.items()}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_shape_equals_its_component_in_the_openapi_document(shape: Any) -> None:
    component, own = SCHEMAS[shape.__name__], schema(shape)
    assert set(own["required"]) == set(component["required"])
    assert without_texts(own["properties"]) == without_texts(component["properties"])


@pytest.mark.parametrize(
    ("result", "name", "response"),
    [(results.FillMaskResult, "MaskResult", "FillMaskResponse"), (results.LabelResult, "LabelResult", "LabelResponse")],
)
def test_result_has_the_fields_of_its_component_and_the_model_of_the_response(
    result: Any, name: str, response: str
) -> None:
    component = SCHEMAS[response]
    assert set(component["required"]) == {"model", "results"}
    assert component["properties"]["results"]["items"] == {"$ref": f"#/components/schemas/{name}"}
    own = schema(result)["properties"]
    assert own.pop("model")["type"] == "string"
    assert without_texts(own) == without_texts(SCHEMAS[name]["properties"])
