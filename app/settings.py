"""One table of settings, each an environment variable (`BERT_PORT`) and a flag of `bert-serve` (`--port`)."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)

PREFIX = "BERT_"

_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_ORIGIN = re.compile(r"\*|null|([a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?")
"""As browsers send it, or `*` for all: scheme, host in ASCII, port."""
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""Browsers leave these out of an origin."""

_WORKERS_ERROR = (
    "BERT_WORKERS: the service is one process that uses all cores; for more, run replicas "
    "(docker compose up --scale bert=2, or replicas in Kubernetes) and unset BERT_WORKERS"
)
_WEIGHTS = Path(__file__).parents[1] / "model" / "weights"  # beside `app` in a checkout and in a wheel


class SettingsError(Exception):
    """A setting with an impossible value; the message names the variable."""


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if not parts:
        raise ValueError("names nothing: unset it, or name something")  # no keys would let everybody in
    return parts


def _as_access(value: object) -> object:
    """A switch is as good: `true` is `open`, `false` is `off`."""
    try:
        return ("off", "open")[TypeAdapter(bool).validate_python(value)]
    except ValidationError:
        return value


Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_split)]
Access = Annotated[Literal["open", "key", "off"], BeforeValidator(_as_access)]


class Settings(BaseModel):
    """The table: name, default, help. Frozen; checked when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    host: str = Field("0.0.0.0", description="address to listen on")  # noqa: S104 (a service in a container)
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    pretrained: Path = Field(
        _WEIGHTS / "pretrained", description="checkpoint directory for fill-mask and next-sentence"
    )
    sentiment: Path = Field(_WEIGHTS / "sentiment", description="checkpoint directory for sentiment")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="precision of the encoder; auto takes bfloat16 where it is native and faster",
    )
    threads: int = Field(
        0,
        ge=0,
        description="CPU cores that compute, each its own batches; 0 takes all that the process may use",
    )
    max_batch_tokens: int = Field(
        0, ge=0, description="tokens that one forward pass computes together; 0 follows from the measured speed"
    )
    max_queue_tokens: int = Field(
        262_144,
        ge=1,
        description="tokens that may wait; beyond it, or beyond what is computed in time, requests get 429",
    )
    max_client_batch: int = Field(512, ge=1, le=65_536, description="inputs that one request may carry")
    max_body_bytes: int = Field(2 * 1024 * 1024, ge=1, description="bytes that one request body may have")
    max_upload_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1,
        description="bytes that bodies over 64 KiB may have together while they are being sent; beyond it, 429",
    )
    request_timeout_ms: int = Field(
        30_000, ge=1, description="deadline of a request; X-Request-Timeout-Ms can shorten it"
    )
    drain_seconds: float = Field(25, ge=0, description="after SIGTERM, the time that accepted requests have to finish")
    keep_alive_seconds: int = Field(
        75, ge=1, description="seconds until an idle connection is closed; longer than the load balancer's idle time"
    )
    api_keys_file: Path | None = Field(
        None, description="file with the API keys, in place of BERT_API_KEYS; one per line"
    )
    api_keys: Secrets = Field(
        (),
        description="comma-separated; with any, the tasks and /hf/* ask for one (health and info do not); not empty",
    )
    allowed_hosts: Names = Field(
        (),
        description="comma-separated Host names that the service answers to, such as *.example.org; by default all. "
        "IP addresses are always allowed",
    )
    cors_origins: Names = Field((), description="comma-separated origins that browsers may call from; * for all")
    docs: Access = Field(
        "open",
        description="the playground, /docs and /openapi.json: for everyone, for key holders, or for nobody",
    )
    metrics: Access = Field("open", description="/metrics: for everyone, for key holders, or for nobody")
    log_format: Literal["text", "json"] = Field("text", description="text or json")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug also logs one line per request"
    )

    @field_validator("api_keys", mode="before")
    @classmethod
    def _read_keys(cls, given: object, info: ValidationInfo) -> object:
        if (file := info.data.get("api_keys_file")) is None:
            return given
        if given != ():
            raise ValueError(f"set either this or {PREFIX}API_KEYS_FILE")
        try:
            return file.read_text(encoding="utf-8").replace("\n", ",")
        except (OSError, UnicodeDecodeError):
            raise ValueError(f"cannot read the file {file} of {PREFIX}API_KEYS_FILE as text") from None

    @field_validator("allowed_hosts")
    @classmethod
    def _are_hosts(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        given = tuple(host.lower() for host in hosts)
        for host in given:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{host!r} is not a host name: write example.org or *.example.org, without a port")
        return given

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        known = []
        for origin in origins:
            if not (match := _ORIGIN.fullmatch(origin.removesuffix("/").lower())):
                raise ValueError(f"{origin!r} is not an origin that browsers send: write it like https://example.org")
            known.append(match[0].removesuffix(_DEFAULT_PORTS.get(match[1], "")))
        return tuple(known)

    @field_validator("docs", "metrics")
    @classmethod
    def _has_keys(cls, access: str, info: ValidationInfo) -> str:
        if access == "key" and not info.data.get("api_keys"):
            raise ValueError(f"needs keys in {PREFIX}API_KEYS or {PREFIX}API_KEYS_FILE")
        return access

    @classmethod
    def read(cls, environ: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Settings:
        """Defaults, overridden by the environment, overridden by flags. An empty value counts as none, except
        empty keys: they would let everybody in.

        Raises:
            SettingsError: names every variable whose value cannot be used.
        """
        if environ.get("BERT_WORKERS", "1") not in ("", "1"):
            raise SettingsError(_WORKERS_ERROR)
        variables = {name: environ.get(PREFIX + name.upper()) for name in cls.model_fields}
        given = [(name, value) for source in (variables, flags or {}) for name, value in source.items()]
        try:
            return cls.model_validate({n: value for n, value in given if value or (n == "api_keys" and value == "")})
        except ValidationError as error:
            raise SettingsError("; ".join(map(_explain, error.errors()))) from None

    @classmethod
    def suggest_names(cls, environ: Mapping[str, str]) -> dict[str, str]:
        """Variables that no setting has, but one that is nearly called so: each with that one."""
        known = [PREFIX + name.upper() for name in cls.model_fields]
        strange = [name for name in environ if name.startswith(PREFIX) and name not in known]
        near = {name: difflib.get_close_matches(name, known, n=1, cutoff=0.85) for name in strange}
        return {name: found[0] for name, found in near.items() if found}

    @classmethod
    def from_command_line(cls, arguments: Sequence[str], environ: Mapping[str, str]) -> Settings:
        """Settings of `bert-serve [flags]`."""
        return cls.read(environ, vars(_parser().parse_args(arguments)))


def _explain(error: Any) -> str:
    name = str(error["loc"][0])
    value = "***" if name == "api_keys" else repr(error["input"])
    # Kubernetes sets BERT_PORT=tcp://... in every pod beside a service that is called "bert".
    hint = " (set by Kubernetes? use enableServiceLinks: false)" if "tcp://" in value else ""
    return f"{PREFIX}{name.upper()}={value}: {error['msg']}{hint}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bert-serve",
        description="Serve masked words, next sentences and sentiment over HTTP.",
        epilog="The signal SIGHUP reloads the checkpoints of a running service: kill -HUP PID.",
    )
    for name, field in Settings.model_fields.items():
        shown = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        parser.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            metavar="X",
            help=f"{field.description} [{PREFIX}{name.upper()}, default: {'none' if shown in ('', None) else shown}]",
        )
    return parser
