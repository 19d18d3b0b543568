"""`classify`: tables as people have them, the output folder, and one run from a table to a served model."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import transformers

from bert_tables import files
from model import Tokenizer, load_checkpoint
from model.tokenizer import SPECIAL_TOKENS
from tests.conftest import tiny_config
from tests.training.classify.tables import only, planned, reviews, surveyed, write_csv, written
from tests.training.commands import finish, memory_layout, occupied, start
from tests.training.sources.reading import write
from tests.training.texts import squeezed
from training.classify import columns
from training.classify.start import PRETRAINED
from training.command import main
from training.corpus.parts import Part
from training.corpus.prepare import prepare_labelled
from training.corpus.reader import PreparedText
from training.errors import RecipeError, RunError, SourceError
from training.loop.log import RunLog
from training.recipe import Recipe, load_recipe, recipe_keys

REVIEWS = only(reviews(), "body", "sentiment")


def texts_of(recipe: Recipe) -> Counter[str]:
    """Number of texts in each part, as training reads them."""
    tokenizer, folder = Tokenizer.from_vocab(SPECIAL_TOKENS), recipe.folder / "counted"
    text = PreparedText(folder, prepare_labelled(recipe, tokenizer, folder))
    return Counter(Part(part).name.lower() for part in text.column("parts")[~text.column("changed")])


# --- tables --------------------------------------------------------------------------------------------------------


def test_spreadsheet_is_read_as_it_is_exported(tmp_path: Path) -> None:
    """A byte order mark, semicolons, line ends of Windows, line breaks in cells and empty columns at the end."""
    rows = [
        {"Text": f"{row['body']};\nSchön, {i}", "Kategorie": row["sentiment"], "": "", " ": ""}
        for i, row in enumerate(reviews())
    ]
    table = write_csv(tmp_path / "export.csv", rows, "utf-8-sig", delimiter=";")
    plan = planned(table, tmp_path / "out")
    assert "60 texts (text: Text; labels: Kategorie)" in plan.summary
    assert sum(texts_of(plan.recipe).values()) == 60


def test_spreadsheet_in_another_encoding_says_what_to_add(tmp_path: Path) -> None:
    rows = [row | {"body": f"Schön: {row['body']}"} for row in REVIEWS]
    table = write_csv(tmp_path / "export.csv", rows, "windows-1252", delimiter=";")
    message = r"export\.csv, line 2: .*byte 0xf6 is not UTF-8: add --encoding windows-1252, or another \([^;]*\)$"
    with pytest.raises(SourceError, match=message):
        planned(table, tmp_path / "out")
    plan = planned(table, tmp_path / "out", "--encoding", "windows-1252")
    assert written(plan)["finetune"]["train"][0]["table"] == {"encoding": "windows-1252"}
    assert sum(texts_of(plan.recipe).values()) == 60


def test_folder_of_folders_and_lines_of_fasttext_need_no_columns(tmp_path: Path) -> None:
    lines = []
    for i, row in enumerate(reviews()):
        file = tmp_path / "classes" / row["sentiment"] / f"{i}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(row["body"])
        lines.append(f"__label__{row['sentiment']} {row['body']}\n")
    (tmp_path / "lines.txt").write_text("".join(lines))
    for label in ("negative", "positive"):
        for name in (f"tables/{label}", f"hive/sentiment={label}"):
            (tmp_path / name).mkdir(parents=True)
            write_csv(
                tmp_path / name / "a.csv", [{"body": row["body"]} for row in reviews() if row["sentiment"] == label]
            )
    with pytest.raises(SourceError, match="name them, such as: --text body --label folder"):
        planned(tmp_path / "tables", tmp_path / "out")
    options = {"lines.txt": ("--format", "fasttext"), "tables": ("--label", "folder")}
    for name in ("classes", "lines.txt", "tables", "hive"):
        plan = planned(tmp_path / name, tmp_path / f"out {name}", *options.get(name, ()))
        assert "labels: negative (30), positive (30)" in plan.summary
        assert sum(texts_of(plan.recipe).values()) == 60
    with pytest.raises(
        SourceError, match=r"is plain text, which has no labels; if .*labels of fastText, add --format fast"
    ):
        planned(tmp_path / "lines.txt", tmp_path / "out")


@pytest.mark.parametrize("kept", [2**28, 5000])
def test_tables_are_read_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """Also if the columns of a table are chosen by its first rows."""
    opened, counting_file = [], files._CountingFile
    monkeypatch.setattr(files, "_CountingFile", lambda file, _: opened.append(file) or counting_file(file, None))
    monkeypatch.setattr(columns, "KEPT_BYTES", kept)
    lines = "".join(f"__label__{row['sentiment']} {row['body']}\n" for row in REVIEWS)
    tables = [write_csv(tmp_path / f"{name}.csv", REVIEWS) for name in ("train", "test")]
    texts = [write(tmp_path / f"{name}.txt", lines) for name in ("train", "test")]
    for (train, test), form in ((tables, "auto"), (texts, "fasttext")):
        found = surveyed(train, "--test", str(test), "--format", form)
        assert (found.counts.texts, found.tested.texts) == (60, 60)
    assert sorted(opened) == sorted(map(str, tables + texts))


def test_test_table_needs_the_columns_of_the_table(tmp_path: Path) -> None:
    table = write_csv(tmp_path / "train.csv", REVIEWS)
    test = write_csv(tmp_path / "test.csv", [{"text": "x", "sentiment": "positive"}])
    with pytest.raises(SourceError, match=r"test\.csv: it has no column 'body'; .*; state --text, --label"):
        planned(table, tmp_path / "out", "--test", str(test))


# --- the recipe ----------------------------------------------------------------------------------------------------


def test_recipe_works_from_any_folder_with_any_characters_in_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "Kunden [2024]" / "Übersicht (neu) [1].csv", REVIEWS)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "Kunden [2024]")
    for table, output in (
        ("Übersicht (neu) [1].csv", "mein Modell [1]"),
        ("~/Kunden [2024]/Übersicht (neu) [1].csv", "~/zu Hause"),
        ("../Kunden [2024]/Übersicht (neu) [1].csv", str(tmp_path / "overall")),
    ):
        plan = planned(table, output)
        with monkeypatch.context() as patch:
            patch.chdir("/")
            recipe = load_recipe(str(plan.recipe.folder / "recipe.toml"))
            assert recipe.folder == plan.recipe.folder
            assert recipe.export.classifier == recipe.folder / "model"
            assert sum(texts_of(recipe).values()) == 60
    assert plan.recipe.exported("classifier") == tmp_path / "overall" / "model"
    here = planned("Übersicht (neu) [1].csv", "mein Modell [1]").recipe
    assert here.exported("classifier") == Path.cwd() / "mein Modell [1]" / "model"


def test_recipe_has_the_overrides_and_no_more_than_it_needs(tmp_path: Path) -> None:
    rows = [row | {"film": f"film {i % 12}"} for i, row in enumerate(REVIEWS)]
    table = write_csv(tmp_path / "reviews.csv", rows)
    arguments = ("--text", "body", "--label", "sentiment", "seed=7", "source.group=film", "finetune.passes=\n3")
    values = written(planned(table, tmp_path / "out", *arguments))
    assert values["seed"] == 7
    assert set(values["finetune"]) == {"pretrained", "test_fraction", "all_rows", "passes", "labels", "train"}
    source = {"path": "reviews.csv", "text": ["body"], "label": "sentiment", "group": "film"}
    assert values["finetune"]["train"] == [source]
    assert (values["data"], values["finetune"]["test_fraction"]) == (str(tmp_path), 0.2)
    assert Path(values["finetune"]["pretrained"]).joinpath("config.json").is_file()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("name=other", "classify chooses name itself"),
        ("source.text=body", r"classify chooses source\.text itself or has an option for it"),
        ("finetune.passe=3", r"finetune\.passe: no such key; did you mean finetune\.passes\?"),
        ("source.grup=film", r"did you mean source\.group\?"),
        ("seed", "not of the form key=value"),
    ],
)
def test_override_that_makes_no_sense_is_refused_before_the_table_is_read(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        planned(tmp_path / "nothing.csv", tmp_path / "out", override)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("The parcel came two days late, and nobody answers my questions about it.", ""),
        ("Das Paket kam zwei Tage zu spät, und niemand beantwortet meine Fragen dazu.", "a word needs 2."),
        ("Посылка пришла с опозданием на два дня, и никто не отвечает на вопросы.", "a word needs "),
        ("包裹晚到了两天，没有人回答我的问题。", "of the letters become [UNK]"),
    ],
)
def test_summary_tells_of_texts_that_the_network_does_not_know(tmp_path: Path, text: str, advice: str) -> None:
    table = write_csv(tmp_path / "t.csv", [{"text": f"{text} {i}", "label": "ab"[i % 2]} for i in range(20)])
    *_, last = planned(table, tmp_path / "out", f"finetune.pretrained={PRETRAINED}").summary.splitlines()
    assert advice in last
    assert last.endswith("finetune.pretrained=FOLDER") == bool(advice)


SOURCE_KEYS: dict[str, Any] = dict.fromkeys(("path", "hub", "text", "label", "format"))
SOURCE_KEYS |= {
    "name": "mine",
    "split": "test",
    "note": "CC0",
    "table": '{ encoding = "windows-1252" }',
    "separator": "#",
}
SOURCE_KEYS |= {"read": "both", "lines": "wrapped", "treebank": "both", "escaped_newlines": True, "limit": 50}
SOURCE_KEYS |= {"boundary": "---", "group": "film", "by": "verified", "balance": 1.5}
"""A value for each key of a source; None for those that `classify` chooses."""


@pytest.mark.parametrize("key", [key.removeprefix("source.") for key, _ in recipe_keys() if key.startswith("source.")])
def test_key_of_a_source_works_with_classify(tmp_path: Path, key: str) -> None:
    value = SOURCE_KEYS[key]
    rows = [row | {"film": f"film {i % 12}", "sentiment": "ab#a#b"[i % 3 * 2 :][:3]} for i, row in enumerate(reviews())]
    for row in rows if key != "separator" else ():
        row["sentiment"] = row["sentiment"].replace("#", "")
    table = write_csv(tmp_path / "reviews.csv", rows)
    given = f"source.{key}={str(value).lower() if isinstance(value, bool) else value}"
    arguments = ("--text", "title,body", "--label", "sentiment", f"finetune.pretrained={PRETRAINED}", given)
    if value is None:
        with pytest.raises(RecipeError, match=rf"classify chooses source\.{key} itself or has an option for it"):
            planned(table, tmp_path / "out", *arguments)
        return
    plan = planned(table, tmp_path / "out", *arguments)
    (source,) = written(plan)["finetune"]["train"]
    assert source[key] == (value if key != "table" else {"encoding": "windows-1252"})
    assert sum(texts_of(plan.recipe).values()) == (50 if key == "limit" else 60)


def test_large_tables_hold_out_about_two_thousand_texts(tmp_path: Path) -> None:
    rows = [{"text": f"a text like the one with number {i}", "label": "ab"[i % 2]} for i in range(40_000)]
    assert surveyed(write_csv(tmp_path / "large.csv", rows)).test_fraction == 0.05


# --- the output folder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out", "out/file.txt", ".out"])
def test_output_with_something_else_in_it_is_refused_before_the_table_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file.txt").write_text("mine")
    with pytest.raises(RunError, match="name another --output"):
        planned(tmp_path / "nothing.csv", tmp_path / name)
    with pytest.raises(RunError, match="where it would be read as text: name another --output"):
        planned(tmp_path, tmp_path / "out" / "new")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "file.txt"]


def test_output_gets_the_recipe_of_the_last_command(tmp_path: Path) -> None:
    table, output = write_csv(tmp_path / "reviews.csv", reviews()), tmp_path / "out"
    for label in ("stars", "sentiment"):
        plan = planned(table, output, "--text", "body", "--label", label)
        assert written(plan)["finetune"]["train"][0]["label"] == label


def test_output_of_a_process_that_prepares_texts_is_refused(tmp_path: Path) -> None:
    table, output = write_csv(tmp_path / "reviews.csv", REVIEWS), tmp_path / "out"
    with occupied(output), pytest.raises(RunError, match="another process works in"):
        planned(table, output)
    planned(table, output)


# --- from a table to a model ---------------------------------------------------------------------------------------


def test_classify_trains_evaluates_exports_and_repeats(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tokenizer: Tokenizer,
) -> None:
    """It starts from an encoder without heads and pooler."""
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "my reviews.csv", only(reviews(), "title", "body", "sentiment"))
    start = tmp_path / "encoder"
    shape = transformers.BertConfig(**tiny_config(max_position_embeddings=48).to_dict())
    transformers.BertModel(shape, add_pooling_layer=False).save_pretrained(start)
    (start / "vocab.txt").write_text("\n".join(tokenizer.vocab))
    network = [f"finetune.pretrained={start}", "finetune.max_length=48", "finetune.passes=1"]
    command = ["classify", "my reviews.csv", "--text", "title,body", "--output", "my model", *network]
    assert main(command) == 0
    first = squeezed(capsys.readouterr().out)
    assert first.startswith("my reviews.csv: 60 texts (text: title, body; labels: sentiment)\n")
    assert first.count("pieces, about 1.2 in text that the network knows. Start from") == 2, "in summary and report"
    assert "| my-reviews | " in first
    assert "| my-reviews (pair) | " in first
    assert "my model/model' bert-serve\n" in first
    assert "The exported classifier is trained with the same settings on all 60 texts." in first
    served = load_checkpoint(Path("my model", "model"))
    assert (served.name, served.config.labels) == ("my model", ["negative", "positive"])
    assert {"recipe.toml", "report.json", "report.md"} <= {path.name for path in Path("my model").iterdir()}
    card = Path("my model", "model", "README.md").read_text()
    assert str(tmp_path) not in card
    assert "| my-reviews | " in squeezed(card)

    weights = Path("my model", "model", "model.safetensors").read_bytes()
    monkeypatch.chdir("/")
    assert main(["all", str(tmp_path / "my model" / "recipe.toml")]) == 0
    assert "| my-reviews | " in squeezed(capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    assert main(command) == 0
    assert squeezed(capsys.readouterr().out).endswith(first[first.index("| test set |") :])
    assert Path("my model", "model", "model.safetensors").read_bytes() == weights
    line = Path("my model", "recipe.toml").read_text().splitlines()[0]
    assert line == f"# Written by: bert-train {shlex.join(command)}"

    write_csv(tmp_path / "my reviews.csv", only(reviews(80), "title", "body", "sentiment"))
    assert main(command) == 0
    assert squeezed(capsys.readouterr().out).startswith("my reviews.csv: 80 texts")
    assert Path("my model", "model", "model.safetensors").read_bytes() != weights
    assert len(list(Path("my model").glob("stages/finetune-*"))) == 2, "the classifier of the other table stays"


def test_classify_in_other_processes_makes_the_same_bytes(tmp_path: Path) -> None:
    """Some labels are wrong, so that the scores are calibrated too."""
    rows = only(reviews(100), "body", "sentiment")
    for row in rows[::5]:
        row["sentiment"] = "positive" if row["sentiment"] == "negative" else "negative"
    table = write_csv(tmp_path / "reviews.csv", rows)
    outputs = [tmp_path / "first" / "mine", tmp_path / "second" / "mine"]
    settings = ("seed=3", "finetune.passes=1", "finetune.dev_fraction=0.5")
    processes = [
        start("classify", str(table), "--output", str(output), *settings, environment=memory_layout(number))
        for number, output in enumerate(outputs, 1)
    ]
    for process in processes:
        status, out, errors = finish(process)
        assert status == 0, errors
        assert " Seed 3: " in out
    for name in ("model/model.safetensors", "stages/bag-*/target_probs.npy"):
        first, second = (next(output.glob(name)).read_bytes() for output in outputs)
        assert first == second, name
    (calibration,) = (line for line in RunLog(outputs[0] / "finetune" / "log.jsonl") if line["event"] == "calibration")
    assert calibration["temperature"] != 1
