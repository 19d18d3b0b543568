"""The tokenizer files of a checkpoint directory, read as `transformers` reads them.

With the class `BertTokenizer`, the default, `transformers` 5 takes the vocabulary from `tokenizer.json` or `vocab.txt`
and all else from `tokenizer_config.json`. `transformers` 4 takes all but the settings in `_KEYS` from `tokenizer.json`.
With `PreTrainedTokenizerFast` both take all from `tokenizer.json`. Both add the tokens in `tokenizer_config.json`, or
else in `special_tokens_map.json` and `added_tokens.json`. A directory that the two versions tokenize differently is
refused. If only the token types of pairs differ, those of version 5 are used, with a warning.

Token types are part of the post-processor here: its pair template has type 1 in the second half only if
`model_input_names` has `token_type_ids`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Encoding, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as RustTokenizer

from model.errors import CheckpointError
from model.files import check_readable, file_names, read_json

logger = logging.getLogger(__name__)

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD = 100
"""Maximum characters of a word, between blanks and punctuation; a longer one is [UNK]."""
_LONGEST = 1000
"""Maximum characters of a token, and of a word that is split into pieces."""
SPECIAL_NAMES = {f"{token.strip('[]').lower()}_token": token for token in SPECIAL_TOKENS}

# A BertTokenizer's settings with their defaults, and the normalizer's names for them.
_DEFAULTS = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True}
_KEYS = dict(zip(_DEFAULTS, ("lowercase", "strip_accents", "handle_chinese_chars"), strict=True))

_CLASSES = {
    "BertTokenizer": True,
    "DistilBertTokenizer": True,
    "ElectraTokenizer": True,
    "MobileBertTokenizer": True,
    "PreTrainedTokenizer": False,
    "TokenizersBackend": False,
}
"""Names of classes, without "Fast" at the end, and whether each is a BertTokenizer."""

_INPUTS = {True: ["input_ids", "token_type_ids", "attention_mask"], False: ["input_ids", "attention_mask"]}
"""`model_input_names` with and without token types."""


def bert_tokenizer(vocab: Mapping[str, int], settings: Mapping[str, Any]) -> RustTokenizer:
    """WordPiece with BERT's normalizer and pre-tokenizer by these settings, without added tokens."""
    rust = RustTokenizer(models.WordPiece(dict(vocab), unk_token=UNK, max_input_chars_per_word=MAX_WORD))
    flags = {flag: settings.get(name, _DEFAULTS[name]) for name, flag in _KEYS.items()}
    rust.normalizer = normalizers.BertNormalizer(**flags)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece(prefix="##")
    if SEP in vocab and CLS in vocab:
        rust.post_processor = _template(vocab)
    return rust


def _template(vocab: Mapping[str, int], second_type: int = 1) -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{CLS}:0 $A:0 {SEP}:0",
        pair=f"{CLS}:0 $A:0 {SEP}:0 $B:{second_type} {SEP}:{second_type}",
        special_tokens=[(CLS, vocab[CLS]), (SEP, vocab[SEP])],
    )


def add_special_tokens(rust: RustTokenizer) -> None:
    """Mark BERT's special tokens as such, and remove padding and truncation.

    Raises:
        ValueError: the vocabulary lacks one, or the tokenizer uses others.
    """
    if missing := [token for token in SPECIAL_TOKENS if rust.token_to_id(token) is None]:
        raise ValueError(f"the vocabulary has no {', '.join(missing)}")
    if UNK not in rust.get_vocab(with_added_tokens=False) or rust.model.unk_token != UNK:
        raise ValueError(f"the unknown token {rust.model.unk_token!r} is not {UNK}, or not in the vocabulary")
    rust.no_padding()
    rust.no_truncation()
    known = {token.content for token in rust.get_added_tokens_decoder().values()}
    rust.add_special_tokens([token for token in SPECIAL_TOKENS if token not in known])
    second = second_type_id(rust)
    _check_made("a text", rust.encode(MASK), rust, [CLS, MASK, SEP], [0, 0, 0])
    _check_made("a pair", rust.encode(MASK, MASK), rust, [CLS, MASK, SEP, MASK, SEP], [0, 0, 0, second, second])


def _check_made(of: str, made: Encoding, rust: RustTokenizer, tokens: list[str], types: list[int]) -> None:
    ids = [rust.token_to_id(token) for token in tokens]
    if (made.ids, made.type_ids) != (ids, types):
        raise ValueError(
            f"it makes {' '.join(made.tokens)} of {of} (ids {made.ids}, token types {made.type_ids}), "
            f"not {' '.join(tokens)} (ids {ids}, token types {types}); correct its post_processor"
        )


def second_type_id(rust: RustTokenizer) -> int:
    """Token type of the second text of a pair: 0 if the tokenizer has no token types, else 1."""
    return int(any(rust.encode(MASK, MASK).type_ids))


def settings_of(rust: RustTokenizer) -> dict[str, Any]:
    """Contents of `tokenizer_config.json` with which `transformers` tokenizes a text like this tokenizer."""
    is_bert = _difference(rust) is None
    flags = {name: getattr(rust.normalizer, flag) for name, flag in _KEYS.items()} if is_bert else {}
    class_name = "BertTokenizer" if is_bert else "PreTrainedTokenizerFast"
    inputs = _INPUTS[second_type_id(rust) > 0]
    return {"tokenizer_class": class_name, "model_input_names": inputs, **flags, **SPECIAL_NAMES}


def _difference(rust: RustTokenizer) -> str | None:
    """The first part that differs from a BertTokenizer's: normalizer, pre_tokenizer or model. None if only the
    vocabulary or the settings in `_KEYS` differ."""
    bert, own = json.loads(bert_tokenizer({}, {}).to_str()), json.loads(rust.to_str())
    bert["model"]["vocab"] = own["model"]["vocab"]
    own["normalizer"] = (own["normalizer"] or {}) | {flag: bert["normalizer"][flag] for flag in _KEYS.values()}
    return next((part for part in ("normalizer", "pre_tokenizer", "model") if own[part] != bert[part]), None)


def vocab_file(path: Path) -> Path:
    """The file with the vocabulary: `path`, or in the directory `path` tokenizer.json or else vocab.txt."""
    if path.is_file():
        return path
    found = [path / name for name in ("tokenizer.json", "vocab.txt") if name in file_names(path)]
    if not found:
        raise CheckpointError(path, "has neither tokenizer.json nor vocab.txt; copy one from where you got the model")
    return found[0]


def read_tokenizer(vocabulary: Path) -> RustTokenizer:
    """The tokenizer with this vocabulary file and the settings and tokens in the files beside it.

    Raises:
        CheckpointError: a file cannot be read or is not supported, or two files contradict each other.
        Exception: `tokenizers` cannot use the vocabulary.
    """
    names = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json")
    files, present = [vocabulary.with_name(name) for name in names], file_names(vocabulary.parent)
    config, special_map, added, network = (read_json(file) if file.name in present else {} for file in files)
    if "added_tokens_decoder" in config:  # it replaces the two older files
        special_map, added = {}, {}
    class_name = str(config.get("tokenizer_class") or network.get("tokenizer_class") or "BertTokenizer")
    if (is_bert := _CLASSES.get(class_name.removesuffix("Fast"))) is None:
        reason = f"unsupported tokenizer_class {class_name!r}; supported: {', '.join(_CLASSES)}"
        raise CheckpointError(files[0] if "tokenizer_class" in config else files[3], reason)
    _check_settings(files[0], config)
    has_types = _has_token_types(files[0], config, class_name)
    special = _special_tokens(files[1] if special_map else files[0], config | special_map)
    check_readable(vocabulary)
    if vocabulary.suffix == ".json":
        rust = RustTokenizer.from_str(vocabulary.read_text(encoding="utf-8-sig"))
        if not isinstance(rust.model, models.WordPiece):
            raise CheckpointError(vocabulary, f"is a {type(rust.model).__name__} tokenizer; BERT needs WordPiece")
        _check_cost(vocabulary, json.loads(rust.to_str()))
        if is_bert:
            _check_is_bert(vocabulary, rust, class_name, has_types)
        own, vocab = rust.get_added_tokens_decoder(), rust.get_vocab(with_added_tokens=False)
    else:
        own, read = {}, models.WordPiece.read_file(str(vocabulary))
        vocab = {token.removeprefix("\ufeff"): i for token, i in read.items()}  # a byte order mark
    if is_bert or vocabulary.suffix != ".json":
        rust = bert_tokenizer(vocab, config)
    other = {int(i): _added_token(token) for i, token in config.get("added_tokens_decoder", {}).items()}
    other |= {i: AddedToken(t, normalized=t not in special, special=t in special) for t, i in added.items()}
    rust.add_tokens([token for _, token in sorted((own | other).items())])
    made = {token.content for token in rust.get_added_tokens_decoder().values()}
    rust.add_tokens([token for content, token in special.items() if content not in made])
    _check_same(rust, {vocabulary: own, files[2] if added else files[0]: other})
    if is_bert and rust.post_processor is None and {CLS, SEP} <= rust.get_vocab().keys():  # as added tokens
        rust.post_processor = _template(rust.get_vocab())
    if not has_types:
        add_special_tokens(rust)  # checks the template that is replaced here
        rust.post_processor = _template(rust.get_vocab(), second_type=0)
    if token := next((token for token in rust.get_vocab() if len(token) > _LONGEST), None):  # responses repeat it
        raise CheckpointError(vocabulary, f"has a token of {len(token)} characters, at most {_LONGEST} are supported")
    return rust


def _check_cost(file: Path, parts: Mapping[str, Any]) -> None:
    """Raise CheckpointError if a short text can take long to tokenize: a stranger's checkpoint may be made for that."""
    waiting = [parts["normalizer"] or {}, parts["pre_tokenizer"] or {}]
    while waiting:
        part = waiting.pop()
        waiting += part.get("normalizers", []) + part.get("pretokenizers", [])
        kind, pattern = part.get("type"), part.get("pattern") or {}
        if "Regex" in pattern:
            raise CheckpointError(file, f"has a regular expression ({kind}), which can take long; it is not supported")
        longer = kind == "Replace" and len(part["content"]) > len(pattern["String"])
        if longer or kind in ("Prepend", "Precompiled"):
            raise CheckpointError(file, f"has a normalizer {kind}, which can make texts longer; it is not supported")
    if (longest := parts["model"]["max_input_chars_per_word"]) > _LONGEST:
        raise CheckpointError(file, f"max_input_chars_per_word is {longest}, at most {_LONGEST} are supported")


def _check_is_bert(file: Path, rust: RustTokenizer, class_name: str, has_types: bool) -> None:
    """Raise CheckpointError if the file has other parts than a BertTokenizer, because only `transformers` 4 uses them.
    Log a warning if the token types of a pair differ."""
    part = _difference(rust)
    first, second = rust.token_to_id(CLS), rust.token_to_id(SEP)
    if part is None and has_types and first is not None and second is not None:
        rust.no_padding()
        rust.no_truncation()
        words = rust.encode("a", add_special_tokens=False).ids
        text, pair = rust.encode("a"), rust.encode("a", "a")
        if (text.ids, pair.ids) != ([first, *words, second], [first, *words, second, *words, second]):
            part = "post_processor"
        elif pair.type_ids[-1] == 0:
            logger.warning(
                "%s: by its post_processor, which only transformers 4 uses, both texts of a pair have token type 0; "
                "here the second has type 1, as in transformers 5",
                file,
            )
    if part:
        keys = f'"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": {json.dumps(_INPUTS[has_types])}'
        reason = f"its {part} is not that of the tokenizer_class {class_name}; to keep it, write {keys}"
        raise CheckpointError(file, f"{reason} into tokenizer_config.json")


def _check_settings(file: Path, config: Mapping[str, Any]) -> None:
    for name, default in _DEFAULTS.items():
        if not isinstance(value := config.get(name, default), bool) and value is not default:
            raise CheckpointError(file, f"{name} must be true or false, not {value!r}")
    if config.get("split_special_tokens"):
        raise CheckpointError(file, f"split_special_tokens must be false: with true, {MASK} is not read as a mask")
    if not isinstance(inputs := config.get("model_input_names", []), list):
        raise CheckpointError(file, f"model_input_names must be a list such as {_INPUTS[True]}, not {inputs!r}")


def _has_token_types(file: Path, config: Mapping[str, Any], class_name: str) -> bool:
    """Whether `model_input_names` has `token_type_ids`. The default depends on the class, as in `transformers` 5."""
    if "model_input_names" in config:
        return "token_type_ids" in config["model_input_names"]
    name = class_name.removesuffix("Fast")
    if not _CLASSES[name]:
        logger.warning(
            "%s: the tokenizer_class %s has no model_input_names, so both texts of a pair get token type 0, as in "
            'transformers 5; for type 1 in the second, as in transformers 4, write "model_input_names": %s into it',
            *(file, class_name, json.dumps(_INPUTS[True])),
        )
    return _CLASSES[name] and name != "DistilBertTokenizer"


def _check_same(rust: RustTokenizer, recorded: Mapping[Path, Mapping[int, AddedToken]]) -> None:
    """Raise CheckpointError unless the tokens recorded in each file are those of the tokenizer."""
    made = rust.get_added_tokens_decoder()
    for file, tokens in recorded.items():
        for i, token in tokens.items():
            if repr(made.get(i)) != repr(token):
                others = " and ".join(other.name for other in recorded if other != file)
                raise CheckpointError(file, f"the id {i} is {token!r} here, but {made.get(i)!r} in {others}")


def _special_tokens(file: Path, config: Mapping[str, Any]) -> dict[str, AddedToken]:
    """The special tokens that the settings name, by their content."""
    named = {
        key: _added_token(token)
        for key, token in config.items()
        if key.endswith("_token") and isinstance(token, str | dict)
    }
    for key, expected in SPECIAL_NAMES.items():
        if key in named and named[key].content != expected:
            raise CheckpointError(file, f"{key} is {named[key].content!r}; supported: {expected!r} only")
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    more = map(_added_token, extra.values() if isinstance(extra, dict) else extra)
    return {token.content: token for token in (*named.values(), *more)}


def _added_token(token: str | dict[str, Any]) -> AddedToken:
    values = {"content": token, "special": True} if isinstance(token, str) else dict(token)
    values.pop("__type", None)
    return AddedToken(**values)
