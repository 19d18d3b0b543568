"""One table, three sources."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import model
from app.errors import SettingsError
from app.settings import Settings, parse_flags

CONTRACT = {  # what outside checks rely on
    "host", "port", "pretrained", "sentiment", "device", "dtype", "api_keys", "max_body_bytes",
    "max_client_batch", "max_batch_tokens", "max_queue_tokens", "request_timeout_ms", "drain_seconds",
    "cors_origins", "log_format",
}  # fmt: skip


def test_every_promised_setting_exists() -> None:
    assert set(Settings.model_fields) >= CONTRACT


def test_wrong_setting_is_told_without_loading_torch() -> None:
    script = """
import sys
from app.__main__ import serve
try:
    serve()
finally:
    assert "torch" not in sys.modules
"""
    command = [sys.executable, "-c", script, "--port", "none"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.stderr.startswith("bert-serve: BERT_PORT=none: ")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "message"),
    [
        (["--port", "none"], {"BERT_LOG_FORMAT": "json"}, 1, "BERT_PORT=none: "),
        ([], {"BERT_LOG_FORMAT": "json", "OTEL_PROPAGATORS": "b4"}, 1, "Propagator b4 not found"),
        (["--prot=1"], {"BERT_LOG_FORMAT": "JSON"}, 2, "unknown arguments: --prot; see bert-serve --help"),
        (["--log-format", "json", "--port"], {}, 2, "argument --port: expected one argument"),
    ],
)
def test_wrong_flag_or_setting_is_one_json_line_if_asked_for(
    arguments: list[str], environ: dict[str, str], code: int, message: str
) -> None:
    command = [sys.executable, "-m", "app", *arguments]
    ended = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    line = json.loads(ended.stderr)
    assert line["message"].startswith(message)
    assert line["severity"] == "CRITICAL"


def test_defaults_are_the_shipped_weights_and_port_8000() -> None:
    settings = Settings()
    assert settings.port == 8000
    assert settings.pretrained == Path(model.__file__).parent / "weights" / "pretrained"
    assert settings.sentiment == Path(model.__file__).parent / "weights" / "sentiment"


def test_flags_override_the_environment() -> None:
    environ = {"BERT_PORT": "9000", "BERT_HOST": "127.0.0.1", "PORT": "1"}
    settings = Settings.read(environ, parse_flags(["--port", "9001", "--max-queue-tokens", "7"]))
    assert (settings.host, settings.port, settings.max_queue_tokens) == ("127.0.0.1", 9001, 7)


def test_variables_of_clouds_and_of_uvicorn_count_without_the_prefix() -> None:
    settings = Settings.read({"PORT": "9104", "FORWARDED_ALLOW_IPS": "[::1],::FFFF:10.0.0.1,10.1.2.3/8,*"})
    assert settings.port == 9104
    assert settings.forwarded_allow_ips == ("::1/128", "10.0.0.1/32", "10.0.0.0/8", "*")
    assert Settings.read({"PORT": "9104", "BERT_PORT": "9105"}).port == 9105


@pytest.mark.parametrize(
    ("given", "host"),
    [("[::]", "::"), ("0:0::0", "::"), ("::ffff:127.0.0.1", "127.0.0.1"), ("localhost", "localhost")],
)
def test_host_is_in_one_notation(given: str, host: str) -> None:
    assert Settings.read({"BERT_HOST": given}).host == host


def test_words_may_have_any_case() -> None:
    given = {"DEVICE": "CPU", "DTYPE": "BFloat16", "LOG_FORMAT": "JSON ", "LOG_LEVEL": "Warning", "METRICS": "OPEN"}
    settings = Settings.read({f"BERT_{name}": value for name, value in given.items()})
    words = (settings.device, settings.dtype, settings.log_format, settings.log_level, settings.metrics)
    assert words == ("cpu", "bfloat16", "json", "warning", "open")


def test_empty_variable_is_as_good_as_none() -> None:
    assert Settings.read({"BERT_PORT": "", "BERT_CORS_ORIGINS": ""}) == Settings()
    settings = Settings.read({"BERT_API_KEYS": "secret"}, parse_flags(["--port", ""]))
    assert settings == Settings.model_validate({"api_keys": ("secret",)})


def test_lists_are_split_at_commas_and_line_breaks() -> None:
    assert keys(Settings.read({"BERT_API_KEYS": " one, two ,,"})) == ["one", "two"]
    assert keys(Settings.read({"BERT_API_KEYS": "one\ntwo\r\n"})) == ["one", "two"]  # a Kubernetes secret of lines


def test_origins_are_as_browsers_send_them() -> None:
    given = (
        "https://Example.org/, http://localhost:3000,*,null,https://example.com:443,http://example.com:80,"
        "https://example.com:80,http://[::1]:8080,chrome-extension://abcdef"
    )
    assert Settings.read({"BERT_CORS_ORIGINS": given}).cors_origins == (
        "https://example.org",
        "http://localhost:3000",
        "*",
        "null",
        "https://example.com",
        "http://example.com",
        "https://example.com:80",
        "http://[::1]:8080",
        "chrome-extension://abcdef",
    )


@pytest.mark.parametrize(
    ("value", "access"),
    [
        ("true", "open"),
        ("1", "open"),
        ("open", "open"),
        ("false", "off"),
        ("no", "off"),
        ("Off", "off"),
        ("key", "key"),
    ],
)
def test_access_is_a_word_or_a_switch(value: str, access: str) -> None:
    settings = Settings.read({"BERT_API_KEYS": "one", "BERT_DOCS": value, "BERT_METRICS": value})
    assert (settings.docs, settings.metrics) == (access, access)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BERT_PORT", "http"),
        ("BERT_PORT", "70000"),
        ("BERT_DEVICE", "tpu"),
        ("BERT_DTYPE", "int4"),
        ("BERT_LOG_FORMAT", "xml"),
        ("BERT_DOCS", "perhaps"),
        ("BERT_METRICS", "key"),  # without keys, no caller could ask
        ("BERT_DRAIN_SECONDS", "-1"),
        ("BERT_DRAIN_SECONDS", "inf"),
        ("BERT_THREADS", "1000000"),
        ("BERT_ALLOWED_HOSTS", "example.org:8000"),
        ("BERT_ALLOWED_HOSTS", "https://example.org"),
        ("BERT_ALLOWED_HOSTS", "*"),
        ("PORT", "tcp://10.0.0.1:8000"),
        ("FORWARDED_ALLOW_IPS", "localhost"),
        ("FORWARDED_ALLOW_IPS", "10.0.0.*"),
        ("FORWARDED_ALLOW_IPS", "::ffff:0:0/96"),  # callers have IPv4 addresses
        ("BERT_CORS_ORIGINS", "https://a..example"),
        ("BERT_CORS_ORIGINS", "https://a.example:70000"),
        ("BERT_CORS_ORIGINS", "http://[0:0::1]:3000"),  # browsers send [::1]
        ("BERT_CORS_ORIGINS", "example.org"),
        ("BERT_CORS_ORIGINS", "localhost:3000"),
        ("BERT_CORS_ORIGINS", "https://example.org/page"),
        ("BERT_CORS_ORIGINS", "https://example.org//"),
        ("BERT_CORS_ORIGINS", "https://*.example.org"),
        ("BERT_CORS_ORIGINS", "https://example.org:port"),
        ("BERT_CORS_ORIGINS", "https://bücher.example"),
    ],
)
def test_impossible_value_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"{name}={value}: ")):
        Settings.read({name: value})


def test_all_impossible_values_are_named_at_once() -> None:
    with pytest.raises(SettingsError, match=r"BERT_PORT.*BERT_THREADS"):
        Settings.read({"BERT_PORT": "x", "BERT_THREADS": "y"})


def test_variable_set_by_kubernetes_is_recognised() -> None:
    with pytest.raises(SettingsError, match="enableServiceLinks"):
        Settings.read({"BERT_PORT": "tcp://10.0.0.1:8000"})


def test_help_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Settings.read({}, parse_flags(["--help"]))
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert all(f"BERT_{name.upper()}" in shown for name in Settings.model_fields)
    shown = " ".join(shown.split())
    assert "[BERT_API_KEYS, default: none]" in shown
    assert "[BERT_THREADS, default: 0]" in shown
    assert "--dtype {auto,float32,bfloat16,float16,int8}" in shown


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Settings.read({}, parse_flags(["--version"]))
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_device_says_what_to_write() -> None:
    with pytest.raises(SettingsError, match=r"^BERT_DEVICE=2: write auto, cpu, cuda or cuda:1$"):
        Settings.read({"BERT_DEVICE": "2"})


def test_unknown_settings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    environ = {
        "BERT_API_KEY": "secret", "BERT_MAX_QUEUE_TOKEN": "7",
        "BERT_PORT_8000_TCP_ADDR": "10.0.0.1", "BERT_SERVICE_HOST": "10.0.0.1", "API_KEYS": "secret",
    }  # fmt: skip
    Settings.warn_of_unknown(environ | {"BERT_URL": "http://x", "BERT_SPEED": "9", "BERT_THREADS": "1"})
    assert {record.name for record in caplog.records} == {"app.settings"}
    assert caplog.messages == [
        "unknown setting BERT_API_KEY ignored; did you mean BERT_API_KEYS?",
        "unknown setting BERT_MAX_QUEUE_TOKEN ignored; did you mean BERT_MAX_QUEUE_TOKENS?",
        "unknown setting BERT_SPEED ignored",
    ]


def keys(settings: Settings) -> list[str]:
    return [key.get_secret_value() for key in settings.api_keys]


@pytest.mark.parametrize("value", ["", " ", ",", " , "])
def test_api_keys_without_a_key_are_an_error_that_says_what_to_do(value: str) -> None:
    for source in (({"BERT_API_KEYS": value}, {}), ({"BERT_API_KEYS": "one"}, {"api_keys": value})):
        with pytest.raises(SettingsError, match=r"^BERT_API_KEYS=\*\*\*: .*is empty: unset it"):
            Settings.read(*source)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("# zqx\nalpha", 1),
        ("alpha,zqx y", 2),
        ("alpha,zqx\u200b0", 2),
        ("alpha,zqx\x000", 2),
        ('"zqx"', 1),
        ('"zqx,alpha"', 1),
        ("alpha,zqx'", 2),
    ],
)
def test_api_keys_that_no_caller_can_mean_are_an_error(value: str, number: int) -> None:
    with pytest.raises(SettingsError, match=f"key {number} is a comment, or has .* commas or line ends") as raised:
        Settings.read({"BERT_API_KEYS": value})
    assert "zqx" not in str(raised.value)


def test_api_keys_may_be_the_content_of_a_file() -> None:
    assert keys(Settings.read({"BERT_API_KEYS": "\ufeffalpha,beta\r\ngamma\r\n"})) == ["alpha", "beta", "gamma"]


def test_api_keys_are_not_printed() -> None:
    settings = Settings.read({"BERT_API_KEYS": "my-secret,other"})
    shown = (repr(settings), str(settings), str(settings.model_dump()), settings.model_dump_json())
    assert not any("my-secret" in text for text in shown)


def test_api_keys_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n two, three\n\n", encoding="utf-8-sig")
    assert keys(Settings.read({"BERT_API_KEYS_FILE": str(file), "BERT_METRICS": "key"})) == ["one", "two", "three"]
    with pytest.raises(SettingsError, match=r"BERT_API_KEYS=\*\*\*: .*set either this or BERT_API_KEYS_FILE"):
        Settings.read({"BERT_API_KEYS_FILE": str(file), "BERT_API_KEYS": "four"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "^BERT_API_KEYS_FILE=.*keys: cannot be read as text"),
        (b"\xff\xfe", "cannot be read as text"),
        (b" \n", "^BERT_API_KEYS_FILE=.*keys: is empty"),
        (b"one\n\n# of the website\ntwo", "key 2 is a comment, or has "),
    ],
)
def test_api_keys_file_without_keys_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SettingsError, match=message) as raised:
        Settings.read({"BERT_API_KEYS_FILE": str(file), "BERT_METRICS": "key"})
    assert str(raised.value).count("BERT_") == 1  # of other settings, nothing is said


def test_api_key_in_place_of_its_file_is_not_printed() -> None:
    with pytest.raises(SettingsError, match=r"^BERT_API_KEYS_FILE=\*\*\*: cannot be read as text"):
        Settings.read({"BERT_API_KEYS_FILE": "secret-key"})


@pytest.mark.parametrize("name", ["BERT_API_KEYS", "BERT_API_KEYS_FILE", "BERT_ALLOWED_HOSTS"])
def test_setting_that_would_open_the_service_is_not_empty(name: str) -> None:
    with pytest.raises(SettingsError, match=f"^{name}="):
        Settings.read({name: ""})


@pytest.mark.parametrize(
    "arguments",
    [["--api-key=secret"], ["--api-key", "-secret"], ["--keys=secret", "--port", "1"], ["secret"], ["--port"]],
)
def test_unknown_or_empty_flag_is_named_without_its_value(arguments: list[str]) -> None:
    named = arguments[0].partition("=")[0] if arguments != ["secret"] else "a value without its flag"
    with pytest.raises(SettingsError, match=named) as raised:
        parse_flags(arguments)
    assert "secret" not in str(raised.value)
