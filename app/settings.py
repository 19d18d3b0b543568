"""The table of settings, each an environment variable (`BERT_PORT`) and a flag of `bert-serve` (`--port`)."""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from app.errors import FlagError, SettingsError
from model.inference.cpu_features import available_cpus

logger = logging.getLogger(__name__)

PREFIX = "BERT_"

_NAME = r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*"
_HOST = re.compile(rf"(\*\.)?{_NAME}")
_ORIGIN = re.compile(rf"\*|null|([a-z][a-z0-9+.-]*)://({_NAME}|\[[0-9a-f:.]+\])(:[1-9][0-9]{{0,3}}|:[1-6][0-9]{{4}})?")
"""An origin as browsers send it (scheme, host in ASCII, port), or `*` for all."""
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
"""Default ports, which browsers omit from an origin."""

_OTHER_VARIABLES = re.compile(r"BERT_(URL$|SERVICE_|PORT_\d)")
"""Variables that are not settings: the client's, and those that Kubernetes sets for a service "bert"."""
_UNPREFIXED = ("port", "forwarded_allow_ips")
"""Settings that are also read without the prefix: clouds set PORT, and FORWARDED_ALLOW_IPS is uvicorn's variable."""
_NOT_EMPTY = ("api_keys_file", "api_keys", "allowed_hosts")
"""Settings whose empty value is an error, because without them the service is open to everyone."""
_ACCESS_ALIASES = dict.fromkeys(("true", "yes", "on", "1"), "open") | dict.fromkeys(("false", "no", "0"), "off")
"""Other words for an access: YAML reads `off` as false."""
_WEIGHTS = Path(__file__).parents[1] / "model" / "weights"  # beside `app` in a checkout and in a wheel


def _split(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = [part.strip() for part in re.split(r"[,\n]", value.removeprefix("\ufeff")) if part.strip()]
    if not parts:
        raise ValueError("is empty: unset it, or list at least one")  # without keys, the service is open to everyone
    return parts


def plain_address(text: str) -> str:
    """An IP address in its shortest notation; an IPv4-mapped one, such as `::ffff:127.0.0.1`, as IPv4. Other text stays
    as it is."""
    try:
        address = ip_address(text.strip("[]"))
    except ValueError:
        return text
    return str(getattr(address, "ipv4_mapped", None) or address)


def _host(given: str) -> str:
    if not _HOST.fullmatch(host := given.lower()):
        raise ValueError(f"{host!r} is not a host name: write example.org or *.example.org, without a port")
    return host


def _origin(given: str) -> str:
    match = _ORIGIN.fullmatch(given.removesuffix("/").lower())
    if not match or plain_address(match[2] or "") != (match[2] or "").strip("[]"):
        raise ValueError(f"{given!r} is not an origin that browsers send: write it like https://example.org")
    return match[0].removesuffix(_DEFAULT_PORTS.get(match[1], ""))


def _network(given: str) -> str:
    try:  # ::ffff:10.0.0.0/104 becomes 10.0.0.0/104, which is invalid: write IPv4 networks as IPv4
        return given if given == "*" else str(ip_network(plain_address(given).removeprefix("::ffff:"), strict=False))
    except ValueError:
        raise ValueError(f"{given!r} is not an address: write 127.0.0.1, 10.0.0.0/8 or *") from None


def _as_keys(value: object) -> object:
    """The keys in a text, between commas or line ends. Raises ValueError for other text, with its number but without
    the text."""
    parts: Any = _split(value)
    for number, key in enumerate(parts if isinstance(value, str) else (), 1):
        if re.search(r"^[#\"']|\s|[\"']$", key) or not key.isprintable():  # a shell drops quotes, Docker does not
            raise ValueError(
                f"key {number} is a comment, or has quotation marks, white space or characters that cannot be seen: "
                "keys only, with commas or line ends between them"
            )
    return parts


def _keys_in(file: object) -> object:
    """The keys in a file. Raises ValueError if the file has no keys, or other text."""
    if file is None or file == ():
        return ()
    try:
        return _as_keys(Path(str(file)).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise ValueError("cannot be read as text; check its path and permissions") from None


Hosts = Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], BeforeValidator(_split)]
Origins = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], BeforeValidator(_split)]
Networks = Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], BeforeValidator(_split)]
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_as_keys)]
SecretsFile = Annotated[tuple[SecretStr, ...], BeforeValidator(_keys_in)]
"""Keys that are given as the path of a file, which is read once."""
Access = Literal["open", "key", "off"]


class Settings(BaseModel):
    """The table of settings: name, default, help. Frozen; checked when it is created."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    host: Annotated[str, AfterValidator(plain_address)] = Field("0.0.0.0", description="address to listen on")  # noqa: S104 (a service in a container)
    port: int = Field(8000, ge=0, le=65535, description="port to listen on, otherwise PORT; 0 uses a free one")
    pretrained: Path = Field(
        _WEIGHTS / "pretrained", description="checkpoint directory for fill-mask and next-sentence"
    )
    sentiment: Path = Field(_WEIGHTS / "sentiment", description="checkpoint directory for sentiment")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = Field(
        "auto",
        description="precision of the encoder; auto uses bfloat16 where it is native and faster; int8 needs a CPU",
    )
    threads: int = Field(0, ge=0, description="CPU cores for inference; 0 uses all available cores")
    max_batch_tokens: int = Field(
        0, ge=0, description="tokens in one forward pass; 0 derives them from the measured speed"
    )
    max_queue_tokens: int = Field(
        0,
        ge=0,
        description="tokens ahead of a request in the queue, its own included, beyond which it gets 429; 0 uses what "
        "is computed within the request timeout, from 262,144 to 8,000,000",
    )
    max_client_batch: int = Field(512, ge=1, le=65_536, description="inputs in one request")
    max_body_bytes: int = Field(2 * 1024 * 1024, ge=1, description="bytes in one request body")
    max_connections: int = Field(
        4096,
        ge=1,
        description="open connections, fewer if the limit of open files is low; tasks on further ones get 503",
    )
    max_upload_bytes: int = Field(
        32 * 1024 * 1024,
        ge=1,
        description="bytes of all bodies over 64 KiB that are being received, beyond which a request gets 429",
    )
    request_timeout_ms: int = Field(
        30_000,
        ge=1,
        description="deadline of a request, from its complete headers on; X-Request-Timeout-Ms can shorten it",
    )
    drain_seconds: float = Field(
        25, ge=0, allow_inf_nan=False, description="seconds that accepted requests have to finish after SIGTERM"
    )
    keep_alive_seconds: int = Field(
        75, ge=1, description="seconds until an idle connection is closed; set more than a load balancer's idle timeout"
    )
    connection_seconds: float = Field(
        300, ge=0, description="maximum age of a connection, which ends with a response; 0 for no limit"
    )
    forwarded_allow_ips: Networks = Field(
        ("127.0.0.1", "::1"),
        description="addresses or networks of proxies whose X-Forwarded-For counts, or *; else FORWARDED_ALLOW_IPS",
    )
    api_keys_file: SecretsFile = Field((), description="file with the API keys, instead of BERT_API_KEYS")
    api_keys: Secrets = Field(
        (), description="comma-separated API keys; if set, the tasks require one (health and info do not)"
    )
    allowed_hosts: Hosts = Field(
        (),
        description="comma-separated Host names that are answered, such as *.example.org; by default all. "
        "IP addresses are always allowed",
    )
    cors_origins: Origins = Field((), description="comma-separated origins that browsers may call from; * for all")
    docs: Access = Field(
        "open",
        description="access to the playground, /docs and /openapi.json: open (all), key (key holders), off (none)",
    )
    metrics: Access = Field("open", description="access to /metrics: open (all), key (key holders), off (none)")
    log_format: Literal["text", "json"] = Field("text", description="text or json")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="debug also logs one line per request"
    )

    @field_validator("device", "dtype", "docs", "metrics", "log_format", "log_level", mode="before")
    @classmethod
    def _ignore_case(cls, given: object, info: ValidationInfo) -> str:
        word = str(given).strip().lower()
        return _ACCESS_ALIASES.get(word, word) if info.field_name in ("docs", "metrics") else word

    @field_validator("api_keys", mode="before")
    @classmethod
    def _read_keys(cls, given: object, info: ValidationInfo) -> object:
        if (in_file := info.data.get("api_keys_file")) and given != ():
            raise ValueError(f"set either this or {PREFIX}API_KEYS_FILE")
        return in_file or given

    @field_validator("threads")
    @classmethod
    def _has_cores(cls, threads: int) -> int:
        if threads > (cores := available_cpus()):
            raise ValueError(f"this machine gives {cores} cores; set no more, or 0 for all")
        return threads

    @field_validator("docs", "metrics")
    @classmethod
    def _has_keys(cls, access: str, info: ValidationInfo) -> str:
        are_valid = {"api_keys_file", "api_keys"} <= info.data.keys()  # else their own error says so
        if access == "key" and are_valid and not info.data["api_keys"]:
            raise ValueError(f"needs keys in {PREFIX}API_KEYS or {PREFIX}API_KEYS_FILE")
        return access

    @classmethod
    def read(cls, environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None) -> Settings:
        """The defaults, overridden by the environment, overridden by flags. An empty value counts as unset. Only for
        API keys and hosts it is an error, because without them the service is open to everyone.

        Raises:
            SettingsError: the message names every variable with an invalid value.
        """
        variables = {name: PREFIX + name.upper() for name in cls.model_fields}
        variables |= {n: n.upper() for n in _UNPREFIXED if environ.get(n.upper()) and not environ.get(variables[n])}
        given = [(name, environ.get(variable)) for name, variable in variables.items()] + [*(flags or {}).items()]
        try:
            return cls.model_validate({n: value for n, value in given if value or (n in _NOT_EMPTY and value == "")})
        except ValidationError as error:
            raise SettingsError("; ".join(_explain(one, variables) for one in error.errors())) from None

    @classmethod
    def warn_of_unknown(cls, environ: Mapping[str, str]) -> None:
        """Log a warning for each `BERT_` variable that the service does not read."""
        known = [PREFIX + name.upper() for name in cls.model_fields]
        for name in environ:
            if name.startswith(PREFIX) and name not in known and not _OTHER_VARIABLES.match(name):
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
                logger.warning("unknown setting %s ignored%s", name, f"; did you mean {near[0]}?" if near else "")


def _explain(error: Any, variables: Mapping[str, str]) -> str:
    name = str(error["loc"][0])
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "string_pattern_mismatch":
        message = "write auto, cpu, cuda or cuda:1"
    value = error["input"]
    if name == "api_keys" or (name == "api_keys_file" and "/" not in str(value)):  # it may be a key by mistake
        value = "***"
    # Kubernetes sets BERT_PORT=tcp://... in every pod of a namespace that has a service called "bert".
    hint = " (set by Kubernetes? use enableServiceLinks: false)" if "tcp://" in str(value) else ""
    return f"{variables[name]}={value}: {message}{hint}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise FlagError(f"{message}; see bert-serve --help")


def parse_flags(arguments: Sequence[str]) -> dict[str, str | None]:
    """The flags of `bert-serve [flags]`, for `Settings.read`. Settings without a flag are None. Raises FlagError
    for unknown flags, and for flags without a value."""
    parser = _Parser(
        prog="bert-serve",
        allow_abbrev=False,
        description="Serve masked words, next sentences and sentiment over HTTP.",
        epilog="The signal SIGHUP reloads the checkpoints of a running service: kill -HUP PID (not under nohup).",
    )
    parser.add_argument("--version", action="version", version=version())
    for name, field in Settings.model_fields.items():
        is_choice = get_origin(field.annotation) is Literal
        shown = ",".join(field.default) if isinstance(field.default, tuple) else field.default
        parser.add_argument(
            "--" + name.replace("_", "-"),
            dest=name,
            metavar=f"{{{','.join(get_args(field.annotation))}}}" if is_choice else "X",
            help=f"{field.description} [{PREFIX}{name.upper()}, default: {'none' if shown in ('', None) else shown}]",
        )
    flags, unknown = parser.parse_known_args(arguments)
    if unknown:  # values are not shown: one may be a key, which may begin with a hyphen
        flags_only = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        parser.error(f"unknown arguments: {', '.join(flags_only) or 'a value without its flag'}")
    return vars(flags)


def asked_log_format(arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    """The format of the line that says which flags or settings are wrong."""
    flags = re.findall(r"--log-format[= ](\w+)", " ".join(arguments))
    return (flags or [environ.get(f"{PREFIX}LOG_FORMAT", "text")])[-1].lower()


def version() -> str:
    """The service's version, even in a checkout that is not installed."""
    try:
        return metadata.version("bert-service")
    except metadata.PackageNotFoundError:
        project = Path(__file__).parents[1] / "pyproject.toml"
        return str(tomllib.loads(project.read_text())["project"]["version"]) if project.exists() else "unknown"
