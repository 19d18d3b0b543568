"""Tokenizer files of strangers: the ids of `transformers`, or a refusal that names the file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from model import Tokenizer
from model.errors import CheckpointError, UnknownTargetError
from tests.model.reference import VOCAB

WORDS = [*VOCAB, "Hello", "World", "é", "中", "a.b", "##b", "##a"]
TEXTS = [
    "Hello world",
    "hello WORLD é É e\u0301",
    "中a中 hellos, helloing.",
    "a [MASK] hello[MASK]. [mask] [SEP]",
    "a <x> b<y>  c A.B a.b",
    " hello\t<z>world",
]

Files = dict[str, Any]


def special(content: str, index: int | None = None, **flags: bool) -> dict[str, Any]:
    plain = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"content": content, **plain, **flags} | ({} if index is None else {"id": index})


def tokenizer_json(*, added: list[dict[str, Any]] | None = None, **normalizer: Any) -> dict[str, Any]:
    """A file as `transformers` writes it, with other settings of the normalizer and more added tokens."""
    rust = transformers.BertTokenizer(vocab={token: i for i, token in enumerate(WORDS)})._tokenizer
    values: dict[str, Any] = json.loads(rust.to_str())
    values["normalizer"] |= normalizer
    values["added_tokens"] += added or []
    return values


def write(directory: Path, files: Files) -> Path:
    for name, content in {"config.json": {"model_type": "bert"}, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name).write_text(text, encoding="utf-8")
    return directory


VOCAB_TXT = "\n".join(WORDS) + "\n"
SPECIALS = {str(i): special(token) for i, token in enumerate(VOCAB[:5])}
X = len(WORDS)

SAME: dict[str, Files] = {
    "settings contradict lowercase true": {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"do_lower_case": False},
    },
    "settings contradict lowercase false": {
        "tokenizer.json": tokenizer_json(lowercase=False),
        "tokenizer_config.json": {"do_lower_case": True},
    },
    "settings contradict accents": {
        "tokenizer.json": tokenizer_json(strip_accents=True),
        "tokenizer_config.json": {"strip_accents": False, "tokenizer_class": "BertTokenizerFast"},
    },
    "settings contradict Chinese": {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"tokenize_chinese_chars": False, "tokenizer_class": "ElectraTokenizer"},
    },
    "settings say nothing": {"tokenizer.json": tokenizer_json(lowercase=False), "tokenizer_config.json": {}},
    "no settings": {"tokenizer.json": tokenizer_json(lowercase=False)},
    "file as it is": {
        "tokenizer.json": tokenizer_json(lowercase=False),
        "tokenizer_config.json": {"do_lower_case": True, "tokenizer_class": "PreTrainedTokenizerFast"},
    },
    "file as it is, another pre-tokenizer": {
        "tokenizer.json": tokenizer_json() | {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "mask_token": "[MASK]"},
    },
    "class in config.json": {
        "tokenizer.json": tokenizer_json(lowercase=False),
        "config.json": {"model_type": "bert", "tokenizer_class": "PreTrainedTokenizerFast"},
    },
    "tokenizer.json beside another vocab.txt": {
        "tokenizer.json": tokenizer_json(),
        "vocab.txt": "\n".join(reversed(WORDS)),
    },
    "vocab.txt": {"vocab.txt": VOCAB_TXT},
    "vocab.txt without [CLS] and [SEP], which are added": {
        "vocab.txt": "\n".join(word for word in WORDS if word not in ("[CLS]", "[SEP]")),
        "tokenizer_config.json": {
            "added_tokens_decoder": {str(X - 2): special("[CLS]"), str(X - 1): special("[SEP]")},
        },
    },
    "[MASK] with normalized true": {
        "vocab.txt": VOCAB_TXT,
        "special_tokens_map.json": {"mask_token": special("[MASK]", normalized=True)},
    },
    "vocab.txt with settings": {
        "vocab.txt": VOCAB_TXT,
        "tokenizer_config.json": {
            "do_lower_case": False,
            "strip_accents": True,
            "never_split": None,
            "do_basic_tokenize": True,
            "model_max_length": int(1e30),
            "name_or_path": "x",
        },
    },
    "vocab.txt with Windows line ends": {"vocab.txt": "\r\n".join(WORDS) + "\r\n"},
    "vocab.txt with a blank and a repeated line": {"vocab.txt": VOCAB_TXT + "\nhello\n"},
    "vocab.txt with them in the middle": {"vocab.txt": "\n".join([*WORDS[:9], "", "b", *WORDS[9:]])},
    "vocab.txt with white space": {"vocab.txt": "\n".join([*WORDS, "a\x1c", "\x1d", "b \t", "\u3000", "\x85c"])},
    "vocab.txt and added_tokens.json": {"vocab.txt": VOCAB_TXT, "added_tokens.json": {"<x>": X, "<y>": X + 1}},
    "added_tokens.json with a special token": {
        "vocab.txt": VOCAB_TXT,
        "added_tokens.json": {"<x>": X, "A.B": X + 1},
        "special_tokens_map.json": {"mask_token": "[MASK]", "additional_special_tokens": ["<x>"]},
    },
    "special_tokens_map.json with flags": {
        "vocab.txt": VOCAB_TXT,
        "special_tokens_map.json": {"mask_token": special("[MASK]", lstrip=True), "cls_token": "[CLS]"},
    },
    "special_tokens_map.json names more": {
        "tokenizer.json": tokenizer_json(),
        "special_tokens_map.json": {"bos_token": "<x>", "eos_token": "[SEP]"},
    },
    "added_tokens_decoder": {
        "vocab.txt": VOCAB_TXT,
        "tokenizer_config.json": {
            "added_tokens_decoder": SPECIALS
            | {str(X): special("<x>", lstrip=True), str(X + 1): special("A.B", normalized=True, special=False)}
        },
    },
    "added_tokens_decoder hides older files": {
        "vocab.txt": VOCAB_TXT,
        "tokenizer_config.json": {"added_tokens_decoder": SPECIALS},
        "added_tokens.json": {"<x>": X},
        "special_tokens_map.json": {"mask_token": "<mask>"},
    },
    "added_tokens_decoder as tokenizer.json": {
        "tokenizer.json": tokenizer_json(added=[special("<x>", X)]),
        "tokenizer_config.json": {
            "added_tokens_decoder": SPECIALS | {str(X): special("<x>")},
            "tokenizer_class": "BertTokenizer",
        },
    },
    "added_tokens_decoder has more than tokenizer.json": {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"added_tokens_decoder": SPECIALS | {str(X): special("<x>", rstrip=True)}},
    },
    "extra special tokens": {
        "vocab.txt": VOCAB_TXT,
        "tokenizer_config.json": {"extra_special_tokens": ["<x>", "<z>"], "add_prefix_space": True},
    },
    "additional special tokens": {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"additional_special_tokens": ["<z>"], "pad_token": "[PAD]"},
    },
    "typed special tokens of transformers 4": {
        "vocab.txt": VOCAB_TXT,
        "tokenizer_config.json": {
            "mask_token": {"__type": "AddedToken", **special("[MASK]", lstrip=True)},
            "bos_token": None,
            "add_bos_token": False,
        },
    },
    "file as it is with more tokens in the settings": {
        "tokenizer.json": tokenizer_json(added=[special("<x>", X)]),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "added_tokens_decoder": SPECIALS | {str(X): special("<x>"), str(X + 1): special("<y>")},
        },
    },
    "file as it is, no token types": {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids"]},
    },
    "file as it is, token types": {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"tokenizer_class": "TokenizersBackend", "model_input_names": ["token_type_ids"]},
    },
    "no token types": {
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": {"model_input_names": ["input_ids", "attention_mask"]},
    },
    "no token types and vocab.txt": {
        "vocab.txt": VOCAB_TXT,
        "tokenizer_config.json": {"model_input_names": ["input_ids"], "extra_special_tokens": ["<x>"]},
    },
    **{
        f"class {name}": {"vocab.txt": VOCAB_TXT, "tokenizer_config.json": {"tokenizer_class": name}}
        for kind in ("DistilBert", "Electra", "MobileBert")
        for name in (f"{kind}Tokenizer", f"{kind}TokenizerFast")
    },
    "class DistilBertTokenizer with token types": {
        "tokenizer.json": tokenizer_json(lowercase=False),
        "tokenizer_config.json": {"tokenizer_class": "DistilBertTokenizer", "model_input_names": ["token_type_ids"]},
    },
    "padding and truncation in the file": {
        "tokenizer.json": tokenizer_json()
        | {"truncation": {"max_length": 4, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}}
    },
}


@pytest.mark.parametrize("files", SAME.values(), ids=SAME.keys())
def test_read_tokenizer_gives_the_ids_of_transformers(tmp_path: Path, files: Files) -> None:
    ours = Tokenizer.load(write(tmp_path, files))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.backend_tokenizer.no_truncation()
    for text in TEXTS:
        assert ours.ids(text) == theirs(text, add_special_tokens=False)["input_ids"], text
        pair = ours.encode(text, "hello")
        assert (pair.input_ids, pair.token_type_ids) == ids_and_types(theirs(text, "hello"))
    assert ours.vocab_size == max(theirs.get_vocab().values()) + 1
    for file in tmp_path.iterdir():
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    assert Tokenizer.load(tmp_path).to_json() == ours.to_json()


def ids_and_types(encoding: Any) -> tuple[list[int], list[int]]:
    """Without token types, a network of `transformers` takes type 0."""
    ids = encoding["input_ids"]
    return ids, encoding.get("token_type_ids", [0] * len(ids))


@pytest.mark.parametrize("files", SAME.values(), ids=SAME.keys())
def test_save_tokenizer_of_foreign_files_keeps_the_ids(tmp_path: Path, files: Files) -> None:
    ours = Tokenizer.load(write(tmp_path, files))
    (tmp_path / "again").mkdir()
    ours.save(write(tmp_path / "again", {}))
    again = Tokenizer.load(tmp_path / "again")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    for text in TEXTS:
        pair = ours.encode(text, "a")
        assert again.encode(text, "a") == pair
        assert ids_and_types(theirs(text, "a")) == (pair.input_ids, pair.token_type_ids)
        assert theirs(text)["input_ids"] == ours.encode(text).input_ids


def test_read_tokenizer_without_token_types_takes_pairs_for_a_network_with_one(tmp_path: Path) -> None:
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    tokenizer = Tokenizer.load(write(tmp_path, {"vocab.txt": VOCAB_TXT, "tokenizer_config.json": names}), segments=1)
    assert tokenizer.encode("hello", "world").token_type_ids == [0] * 5


@pytest.mark.parametrize("names", [None, ["input_ids", "token_type_ids"]])
def test_read_tokenizer_warns_where_the_versions_of_transformers_give_other_token_types(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, names: list[str] | None
) -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | ({"model_input_names": names} if names else {})
    files = {"tokenizer.json": tokenizer_json(), "tokenizer_config.json": settings}
    tokenizer = Tokenizer.load(write(tmp_path, files))
    assert tokenizer.second_type_id == (1 if names else 0)
    warning = (
        'tokenizer_config.json: the tokenizer_class PreTrainedTokenizerFast has no model_input_names, so .* write "'
    )
    assert [bool(re.search(warning, message)) for message in caplog.messages] == ([] if names else [True])


def test_read_tokenizer_warns_of_a_post_processor_with_one_token_type(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one_type = template(pair="[CLS] $A [SEP] $B [SEP]")
    tokenizer = Tokenizer.load(write(tmp_path, {"tokenizer.json": tokenizer_json() | {"post_processor": one_type}}))
    assert tokenizer.second_type_id == 1
    (message,) = caplog.messages
    assert "both texts of a pair have token type 0; here the second has type 1, as in transformers 5" in message


def test_read_tokenizer_empty_lines_at_the_end_are_not_tokens(tmp_path: Path) -> None:
    settings = {"extra_special_tokens": ["<x>"]}
    tokenizer = Tokenizer.load(write(tmp_path, {"vocab.txt": VOCAB_TXT + "\n\n"}))
    assert tokenizer.vocab == WORDS
    with pytest.raises(UnknownTargetError, match="it has no tokens"):
        tokenizer.target_id("")
    write(tmp_path, {"tokenizer_config.json": settings})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert Tokenizer.load(tmp_path).ids("a <x>") == theirs("a <x>", add_special_tokens=False)["input_ids"]


def changed(**parts: Any) -> Callable[[], dict[str, Any]]:
    def make() -> dict[str, Any]:
        values = tokenizer_json()
        for part, change in parts.items():
            values[part] = values[part] | change if isinstance(change, dict) else change
        return values

    return make


ROBERTA = {
    "type": "RobertaProcessing",
    "sep": ["[SEP]", 3],
    "cls": ["[CLS]", 2],
    "trim_offsets": True,
    "add_prefix_space": False,
}


def template(
    single: str = "[CLS] $A [SEP]", pair: str = "[CLS] $A [SEP] $B:1 [SEP]:1", cls_id: int = 2
) -> dict[str, Any]:
    special_tokens = [("[CLS]", cls_id), ("[SEP]", 3)]
    made = tokenizers.processors.TemplateProcessing(single=single, pair=pair, special_tokens=special_tokens)
    values: dict[str, Any] = json.loads(made.__getstate__())
    return values


def generic(**values: Any) -> Files:
    fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
    return {"tokenizer.json": tokenizer_json() | values, "tokenizer_config.json": fast}


LONGER = {"type": "Replace", "pattern": {"String": "x"}, "content": "xx"}

REFUSED: dict[str, tuple[Files, str, str]] = {
    "a BertTokenizer without a post-processor": (
        {"tokenizer.json": tokenizer_json() | {"post_processor": None}},
        "tokenizer.json",
        "its post_processor is not that of the tokenizer_class BertTokenizer; to keep it, write",
    ),
    "a BertTokenizer with the post-processor of RoBERTa": (
        {"tokenizer.json": tokenizer_json() | {"post_processor": ROBERTA}},
        "tokenizer.json",
        "its post_processor is not that of the tokenizer_class BertTokenizer; to keep it, write",
    ),
    "a normalizer that makes texts longer": (
        generic(normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}, LONGER]}),
        "tokenizer.json",
        "has a normalizer Replace, which can make texts longer",
    ),
    "a normalizer by a regular expression": (
        generic(normalizer=LONGER | {"pattern": {"Regex": "(x+x+)+y"}}),
        "tokenizer.json",
        r"has a regular expression \(Replace\), which can take long",
    ),
    "a pre-tokenizer by a regular expression": (
        generic(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Removed", "invert": False}
                ],
            }
        ),
        "tokenizer.json",
        r"has a regular expression \(Split\)",
    ),
    "a long line of vocab.txt": (
        {"vocab.txt": VOCAB_TXT + "x" * 2000 + "\n"},
        "vocab.txt",
        "has a token of 2000 characters",
    ),
    "longer words": (
        generic(model=tokenizer_json()["model"] | {"max_input_chars_per_word": 10**9}),
        "tokenizer.json",
        "max_input_chars_per_word is 1000000000, at most 1000 are supported",
    ),
    "a long token": (
        generic(model=tokenizer_json()["model"] | {"vocab": tokenizer_json()["model"]["vocab"] | {"x" * 2000: X}}),
        "tokenizer.json",
        "has a token of 2000 characters, at most 1000 are supported",
    ),
    "a template with a token that is missing": (
        generic(post_processor=template() | {"special_tokens": {}}),
        "tokenizer.json",
        "is not a usable WordPiece tokenizer",
    ),
    "another class": (
        {"vocab.txt": VOCAB_TXT, "tokenizer_config.json": {"tokenizer_class": "BertJapaneseTokenizer"}},
        "tokenizer_config.json",
        "unsupported tokenizer_class 'BertJapaneseTokenizer'; supported: BertTokenizer",
    ),
    "another class in config.json": (
        {"vocab.txt": VOCAB_TXT, "config.json": {"model_type": "bert", "tokenizer_class": "RobertaTokenizer"}},
        "config.json",
        "unsupported tokenizer_class 'RobertaTokenizer'",
    ),
    "another normalizer": (
        {"tokenizer.json": tokenizer_json() | {"normalizer": {"type": "Lowercase"}}},
        "tokenizer.json",
        "its normalizer is not that of the tokenizer_class BertTokenizer; to keep it, write .*PreTrainedTokenizerFast.*"
        'model_input_names.*"token_type_ids".* into tokenizer_config.json',
    ),
    "no normalizer": (
        {"tokenizer.json": tokenizer_json() | {"normalizer": None}},
        "tokenizer.json",
        "its normalizer is not that",
    ),
    "a normalizer that keeps control characters": (
        {"tokenizer.json": tokenizer_json(clean_text=False)},
        "tokenizer.json",
        "its normalizer is not that",
    ),
    "another pre-tokenizer": (
        {"tokenizer.json": changed(pre_tokenizer={"type": "Whitespace"})()},
        "tokenizer.json",
        "its pre_tokenizer is not that",
    ),
    "shorter words": (
        {"tokenizer.json": changed(model={"max_input_chars_per_word": 20})()},
        "tokenizer.json",
        "its model is not that",
    ),
    "another order of special tokens": (
        {
            "tokenizer.json": tokenizer_json() | {"post_processor": ROBERTA},
            "tokenizer_config.json": {"tokenizer_class": "TokenizersBackend"},
        },
        "tokenizer.json",
        r"it makes \[CLS\] \[MASK\] \[SEP\] \[SEP\] \[MASK\] \[SEP\] of a pair",
    ),
    "other ids of special tokens": (
        {
            "tokenizer.json": tokenizer_json() | {"post_processor": template(single="[CLS] $A [SEP]", cls_id=101)},
            "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        },
        "tokenizer.json",
        r"it makes \[CLS\] \[MASK\] \[SEP\] of a text \(ids \[101, 4, 3\].*\), not .* \(ids \[2, 4, 3\].*correct its",
    ),
    "a single text without special tokens": (
        {
            "tokenizer.json": tokenizer_json() | {"post_processor": template(single="$A")},
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "model_input_names": ["input_ids", "token_type_ids"],
            },
        },
        "tokenizer.json",
        r"it makes \[MASK\] of a text .*, not \[CLS\] \[MASK\] \[SEP\]",
    ),
    "other token types": (
        {
            "tokenizer.json": tokenizer_json() | {"post_processor": template(pair="[CLS]:1 $A:0 [SEP]:0 $B:1 [SEP]:1")},
            "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
        },
        "tokenizer.json",
        r"of a pair .*token types \[1, 0, 0, 1, 1\]\), not .*token types \[0, 0, 0, 1, 1\]",
    ),
    "special tokens are split": (
        {"vocab.txt": VOCAB_TXT, "tokenizer_config.json": {"split_special_tokens": True}},
        "tokenizer_config.json",
        "split_special_tokens must be false",
    ),
    "inputs are no list": (
        {"vocab.txt": VOCAB_TXT, "tokenizer_config.json": {"model_input_names": "token_type_ids"}},
        "tokenizer_config.json",
        "model_input_names must be a list such as .*, not 'token_type_ids'",
    ),
    "another mask": (
        {"vocab.txt": VOCAB_TXT, "special_tokens_map.json": {"mask_token": "<mask>"}},
        "special_tokens_map.json",
        r"mask_token is '<mask>'; supported: '\[MASK\]' only",
    ),
    "another beginning": (
        {"vocab.txt": VOCAB_TXT, "tokenizer_config.json": {"cls_token": special("<s>")}},
        "tokenizer_config.json",
        r"cls_token is '<s>'",
    ),
    "an added id that is too large": (
        {"vocab.txt": VOCAB_TXT, "added_tokens.json": {"<x>": X + 3}},
        "added_tokens.json",
        rf'the id {X + 3} is AddedToken\("<x>".* here, but None in vocab.txt',
    ),
    "an added token of the vocabulary": (
        {"vocab.txt": VOCAB_TXT, "tokenizer_config.json": {"added_tokens_decoder": {"7": special("hello")}}},
        "tokenizer_config.json",
        r'the id 7 is AddedToken\("hello".* here, but None in vocab.txt',
    ),
    "fewer tokens than tokenizer.json": (
        {
            "tokenizer.json": tokenizer_json(added=[special("<x>", X)]),
            "tokenizer_config.json": {"added_tokens_decoder": {**SPECIALS, str(X): special("<y>")}},
        },
        "tokenizer.json",
        rf'the id {X} is AddedToken\("<x>".* here, but AddedToken\("<y>".* in tokenizer_config.json',
    ),
    "other flags than tokenizer.json": (
        {
            "tokenizer.json": tokenizer_json(),
            "tokenizer_config.json": {"added_tokens_decoder": {**SPECIALS, "4": special("[MASK]", lstrip=True)}},
        },
        "tokenizer.json",
        r"the id 4 is .*lstrip=False.* here, but .*lstrip=True.* in tokenizer_config.json",
    ),
    "a setting of a wrong type": (
        {"vocab.txt": VOCAB_TXT, "tokenizer_config.json": {"do_lower_case": "false"}},
        "tokenizer_config.json",
        "do_lower_case must be true or false, not 'false'",
    ),
    "a setting that is null": (
        {"tokenizer.json": tokenizer_json(), "tokenizer_config.json": {"tokenize_chinese_chars": None}},
        "tokenizer_config.json",
        "tokenize_chinese_chars must be true or false, not None",
    ),
    "settings are no JSON": (
        {"tokenizer.json": tokenizer_json(), "tokenizer_config.json": "{"},
        "tokenizer_config.json",
        "cannot be read as JSON",
    ),
    "tokenizer.json is a Git LFS pointer": (
        {"tokenizer.json": "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 466062\n"},
        "tokenizer.json",
        "is a Git LFS pointer, not the file itself; run git lfs pull",
    ),
    "vocab.txt is a Git LFS pointer": (
        {"vocab.txt": "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 466062\n"},
        "vocab.txt",
        "is a Git LFS pointer",
    ),
    "no WordPiece": (
        {"tokenizer.json": tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()},
        "tokenizer.json",
        "is a BPE tokenizer; BERT needs WordPiece",
    ),
}


@pytest.mark.parametrize(("files", "file", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_read_tokenizer_contradiction_names_the_file(tmp_path: Path, files: Files, file: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"(?s){reason}") as caught:
        Tokenizer.load(write(tmp_path, files))
    assert caught.value.path == tmp_path / file


def test_read_tokenizer_link_without_target_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to("../../blobs/4d7a")
    (tmp_path / "vocab.txt").write_text(VOCAB_TXT)
    with pytest.raises(CheckpointError, match=r"tokenizer.json: is a link to ../../blobs/4d7a, which is missing"):
        Tokenizer.load(tmp_path)
