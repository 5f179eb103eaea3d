"""What a replica's settings are, and who says so: flag over environment over file over default.

`limits` and `log` are a matter of each replica alone, so the process that runs it may set them otherwise than
`cluster.json`: `kvstore serve --set limits.history_ms=0`, or KVSTORE_LIMITS_HISTORY_MS=0. All else is the cluster's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from kvstore.config import ClusterConfig, ConfigError, LogSettings, check
from kvstore.fields import nearest
from kvstore.limits import Limits

PREFIX = "KVSTORE_"
OWN: dict[str, type[msgspec.Struct]] = {"limits": Limits, "log": LogSettings}
HIDDEN = "(hidden)"

Origin = Literal["flag", "environment", "file", "default"]


class Setting(NamedTuple):
    """One of them. value: JSON-ready; what is secret is hidden."""

    name: str
    value: Any
    origin: Origin


def resolved(config: ClusterConfig, environment: Mapping[str, str], flags: Sequence[str]) -> ClusterConfig:
    """The configuration with what environment and flags (NAME=VALUE) say of it. ConfigError names who is wrong: who
    says what is none, or all, with the setting, for whether they fit one another is known when all have said theirs."""
    told = given(environment, flags)
    for source, (name, value) in told.items():
        part, _, field = name.partition(".")
        wanted = next(f.type for f in msgspec.structs.fields(OWN[part]) if f.name == field)
        try:
            changed = msgspec.structs.replace(
                getattr(config, part), **{field: msgspec.convert(value, wanted, strict=False)}
            )
        except msgspec.ValidationError as error:
            raise ConfigError(f"{source}: {error}") from None
        config = msgspec.structs.replace(config, **{part: changed})
    if told:
        check(config, ", ".join(told))
    return config


def given(environment: Mapping[str, str], flags: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Who says it (variable or flag) -> (setting, value), flags last. ConfigError: there is no such setting."""
    names = {f"{part}.{f.name}" for part, model in OWN.items() for f in msgspec.structs.fields(model)}
    variables = {f"{PREFIX}{name.replace('.', '_').upper()}": name for name in names}
    prefixes = tuple(f"{PREFIX}{part.upper()}_" for part in OWN)
    found: dict[str, tuple[str, str]] = {}
    for variable in sorted(environment):
        if variable in variables:
            found[variable] = (variables[variable], environment[variable])
        elif variable.startswith(prefixes):
            raise ConfigError(_unknown(variable, variables))
    for flag in flags:
        name, equals, value = flag.partition("=")
        if not equals or name not in names:
            raise ConfigError(_unknown(f"--set {name}", [f"--set {one}" for one in names]))
        found[f"--set {name}"] = (name, value)
    return found


def _unknown(name: str, known: Any) -> str:
    near = nearest(name, sorted(known))
    return f"{name[:100]}: there is no such setting{f'; did you mean {near}?' if near else ''}"


def settings(
    config: ClusterConfig, file: Mapping[str, Any], environment: Mapping[str, str], flags: Sequence[str]
) -> list[Setting]:
    """All of them, with who says so; of clients what the environment says. file: what stands in `cluster.json`, from
    which `config` was read. ConfigError."""
    said: dict[str, Origin] = {}
    for source, (name, _) in given(environment, flags).items():
        said[name] = "flag" if source.startswith("--") else "environment"
    options = {**msgspec.to_builtins(config.options()), **config.protocol_options}
    values = {**msgspec.to_builtins(resolved(config, environment, flags)), "protocol_options": options}
    found = []
    for top, value in values.items():
        told = file.get(top)
        for name, one in _leaves(top, value):
            _, _, field = name.partition(".")
            in_file = top in file and (not field or (isinstance(told, dict) and field in told))
            origin = said.get(name, "file" if in_file else "default")
            found.append(Setting(name, HIDDEN if name == "root" and one else one, origin))
    for name, secret in (("cluster", False), ("ca", False), ("token", True)):
        value = environment.get(f"{PREFIX}{name.upper()}", "")
        says: Origin = "environment" if value else "default"
        found.append(Setting(f"client.{name}", HIDDEN if value and secret else value, says))
    return found


def _leaves(name: str, value: Any) -> list[tuple[str, Any]]:
    if name in ("protocol_options", *OWN):
        return [(f"{name}.{field}", one) for field, one in value.items()]
    return [(name, value)]
