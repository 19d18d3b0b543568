"""docs/: its tables are the code's, its links lead somewhere, and no block in it goes unchecked."""

from __future__ import annotations

import json
import logging
import re
import tomllib

import pytest
import yaml

from app.observability.log_config import JSONFormatter
from app.settings import PREFIX, Settings
from tests.docs import blocks, commands, tables
from tests.docs.blocks import ALL, DOCS, DOCUMENTS, Block
from tests.docs.commands import COMPOSE
from tests.docs.diagrams import IMAGES, picture

PAGES = {file.name: file.read_text(encoding="utf-8") for file in DOCUMENTS}
CHECKED = {
    "http",  # below a curl command: tests/shipped/test_docs.py
    "json",
    "mermaid",
    "nginx",  # tests/docs/test_proxy.py
    "python",  # tests/shipped/test_docs.py, tests/training/test_docs.py
    "sh",
    "text",  # below a Python block
    "toml",
    "yaml",
}


def where(block: Block) -> str:
    return block.where


@pytest.mark.parametrize(("document", "name"), tables.TABLES)
def test_table_is_the_codes(document: str, name: str) -> None:
    found = tables.place(name).search(PAGES[document])
    assert found is not None
    assert found[0] == tables.TABLES[document, name](), "to renew it: python -m tests.docs.tables"


def test_no_cell_of_a_table_is_empty() -> None:
    assert "|  |" not in "".join(make() for make in tables.TABLES.values())


@pytest.mark.parametrize("block", ALL, ids=where)
def test_block_is_in_a_language_that_is_checked(block: Block) -> None:
    assert block.language in CHECKED


def test_every_fence_is_seen() -> None:
    for document, text in PAGES.items():
        seen = [block for block in ALL if block.where.startswith(f"{document}:")]
        assert 2 * len(seen) == len(re.findall(r"^```", text, re.MULTILINE)), document


def test_every_answer_stands_below_its_question() -> None:
    answers = {block.answer for block in ALL if block.answer}
    assert [block.where for block in blocks.of("http", "text") if block not in answers] == []


@pytest.mark.parametrize("block", blocks.of("json", "toml", "yaml"), ids=where)
def test_data_can_be_read(block: Block) -> None:
    {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}[block.language](block.text)


@pytest.mark.parametrize("block", blocks.of("sh"), ids=where)
def test_commands_name_what_is_there(block: Block) -> None:
    for command in block.commands():
        commands.check(command)


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("make nothing", "no target nothing"),
        ("BERT_PROT=1 make serve", "BERT_PROT"),
        ("TORCH_INDICES=x docker compose up", "TORCH_INDICES is not a setting"),
        ("docker compose up nobody", "nobody"),
        ("docker build --tag bert-service:cpu --build-arg TORCH=x .", "TORCH=x"),
        ("kubectl rollout status deployment/other", "deployment/other"),
        ("openapi-generator-cli generate --schema-mappings TextPair=Object,Gone=Object", "no schema Gone"),
        ("rm -rf /", "teach"),
    ],
)
def test_wrong_command_is_found(command: str, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        commands.check(command)


@pytest.mark.parametrize("document", PAGES)
def test_variables_and_make_targets_in_the_text_exist(document: str) -> None:
    named = set(re.findall(rf"\b{PREFIX}([A-Z][A-Z_]*[A-Z])\b", PAGES[document]))
    assert {name.lower() for name in named} <= {
        *Settings.model_fields,
        "url",
        "api_key",
    }  # two are the client's
    for target in re.findall(r"`make ([a-z-]+)", PAGES[document]):
        commands.check(f"make {target}")


@pytest.mark.parametrize("document", PAGES)
def test_named_files_exist(document: str) -> None:
    paths = re.findall(r"`((?:app|deploy|model|tests|training)/[\w./*-]+)`", PAGES[document])
    assert [path for path in paths if not any(commands.ROOT.glob(path.rstrip("/")))] == []


@pytest.mark.parametrize("document", PAGES)
def test_links_lead_somewhere(document: str) -> None:
    for address in re.findall(r"\]\(([^)\s]+)\)", PAGES[document]):
        if "://" in address:
            continue
        path, _, anchor = address.partition("#")
        assert (DOCS / (path or document)).resolve().is_relative_to(DOCS), address  # the site holds no more
        assert (DOCS / (path or document)).is_file(), address
        assert not anchor or anchor in anchors(PAGES[path or document]), address


def test_links_of_the_readme_lead_somewhere() -> None:
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    addresses = [address for address in re.findall(r"\]\(([^)\s]+)\)", readme) if "://" not in address]
    assert [address for address in addresses if not (DOCS.parent / address.partition("#")[0]).exists()] == []


def anchors(text: str) -> set[str]:
    """Of the headings, as the site and GitHub make them."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_diagrams_are_drawn_as_they_are_written() -> None:
    drawn = {picture(block.text) for block in blocks.of("mermaid")}
    assert drawn == set(IMAGES.glob("diagram-*.svg")), "to renew them: python -m tests.docs.diagrams"


def test_compose_profiles_are_those_of_the_table() -> None:
    profiles = {profile for service in COMPOSE["services"].values() for profile in service.get("profiles", [])}
    rows = re.findall(r"^\| `(docker compose .*?)`", PAGES["deployment.md"], re.MULTILINE)
    for command in rows:
        commands.check(command)
    assert set(re.findall(r"--profile ([\w-]+)", " ".join(rows))) == profiles


def test_log_line_has_the_fields_of_the_example() -> None:
    (example,) = [json.loads(b.text) for b in blocks.of("json") if b.where.startswith("monitoring.md")]
    record = logging.LogRecord("app.batching.engine", logging.WARNING, "", 0, example["message"], None, None)
    assert json.loads(JSONFormatter().format(record)) == example | {
        "time": json.loads(JSONFormatter().format(record))["time"]
    }


def test_queries_in_the_text_ask_for_metrics_that_exist() -> None:
    told = set(re.findall(r"^\| `(bert_\w+)", tables.metrics(), re.MULTILINE))
    asked = set(re.findall(r"\bbert_\w+", PAGES["monitoring.md"]))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} == told
