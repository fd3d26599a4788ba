"""The text of `gpufit.toml` → `Inventory`. Pure (no file is touched), so that every rule can be tested by itself.

parse → _Place.read (one reader per key, in `_gpufit_values.py`) → _complete (what has to hold between keys)
"""

from __future__ import annotations

import re
import socket
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import msgspec

from ._gpufit_quota import quotas
from ._gpufit_values import READERS, REPORTER_PORT, did_you_mean
from .errors import InvalidValue, InventoryError
from .inventory import MODELS, OWN, POLICIES, Inventory, NodeSpec, Quota

__all__ = ["parse"]


def parse(text: str, path: Path) -> Inventory:
    """The inventory that `text` describes. `path` is for messages, and what relative file names are relative to.
    Raises `InventoryError`."""
    file = str(path)
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:  # RecursionError: brackets nested thousands deep
        raise InventoryError(f"{file}: is not TOML: {error}{_quotes(text, str(error))}", file=file) from None

    top = _Place(file, "")
    for key in data:
        if key not in (known := ("defaults", "node", "policy", "quota")):
            top.unknown(key, known)
    policy = data.get("policy", POLICIES[0])
    if policy not in POLICIES:
        hint = did_you_mean(str(policy), POLICIES) or f"; use {', '.join(map(repr, POLICIES[:-1]))} or {POLICIES[-1]!r}"
        top.refuse("policy", policy, f"there is no such policy{hint}")

    folder = path.parent
    defaults = data.get("defaults", {})
    if not isinstance(defaults, dict):
        top.refuse("defaults", defaults, "is not a table; write [defaults] on a line of its own, and the keys below it")
    shared = _Place(file, "[defaults]").read(defaults, folder, tuple(key for key in READERS if key != "name"))
    nodes = data.get("node", [])
    if isinstance(nodes, dict):
        reason = "[node] is one table, and nodes are a list; write [[node]], with two brackets, before each node's keys"
        raise InventoryError(f"{file}: {reason}", file=file, key="node")
    if not isinstance(nodes, list) or not all(isinstance(node, dict) for node in nodes):
        top.refuse("node", "…", "is not a list of tables; write [[node]], with two brackets, before each node's keys")
    if not nodes:
        raise InventoryError(
            f"{file}: has no [[node]]; describe one, or remove the file to use this machine", file=file
        )

    specs: dict[str, NodeSpec] = {}
    for number, table in enumerate(nodes, 1):
        name = table.get("name")
        place = _Place(file, f"[[node]] {_shown(name)}" if isinstance(name, str) else f"[[node]] number {number}", name)
        if name is None:
            place.refuse("name", None, "is missing; give each node a name of its own")
        own = place.read(table, folder, tuple(READERS))
        spec = _complete(own, shared, place)
        if spec.name in specs:
            place.refuse("name", spec.name, "another [[node]] has this name already; names are unique")
        specs[spec.name] = spec
    everybody, own = Quota(), {}
    if "quota" in data:
        everybody, own = quotas(data["quota"], top, lambda where: _Place(file, where), folder)
    return Inventory(nodes=tuple(specs.values()), policy=str(policy), path=file, all_quota=everybody, own_quotas=own)


def _complete(own: dict[str, Any], shared: dict[str, Any], place: _Place) -> NodeSpec:
    """The node's own keys over the defaults, and what has to hold between keys."""
    given = shared | own
    spec = NodeSpec(**given)
    if "stale_after" not in given:
        patience = max(spec.stale_after, 3 * spec.monitor_period + spec.timeout)
        spec = msgspec.structs.replace(spec, stale_after=patience)
    remote = spec.report.startswith("http")
    url = urlsplit(spec.docker or "")
    if spec.docker is None and remote:
        reason = (
            "is missing (or 'process'): 'report' names a reporter, and plain processes run only on this machine; "
            'name the node\'s Docker Engine, such as docker = "tcp://gpu01:2376"'
        )
        place.refuse("docker", None, reason)
    if url.scheme == "tcp" and spec.tls is None and not spec.insecure:
        reason = (
            "without TLS, whoever reaches that port is root there; say where the certificates are "
            '(tls = "/etc/gpufit/tls"), or write insecure = true if the network itself is closed'
        )
        place.refuse("docker", spec.docker, reason)
    if "report" not in given and url.hostname and not _is_here(url.hostname):
        reason = (
            f"is missing: the engine is on {url.hostname}, and by default GPUs are read on this machine; "
            f'name the node\'s reporter, such as report = "http://{url.hostname}:{REPORTER_PORT}"'
        )
        place.refuse("report", None, reason)
    if spec.models is not None and any(mount.target == MODELS for mount in spec.mounts):
        place.refuse("mounts", None, f"{MODELS} is where 'models' is mounted; mount the other directory elsewhere")
    for mount in spec.mounts:
        if mount.target in OWN:
            place.refuse("mounts", None, f"{mount.target} is a container's own, for jobs; mount it elsewhere")
    if spec.stale_after < spec.monitor_period:
        reason = f"is less than the monitor_period ({spec.monitor_period:g}s): a report would be stale before the next"
        place.refuse("stale_after", f"{spec.stale_after:g}s", reason)
    return spec


def _is_here(host: str) -> bool:
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")


class _Place:
    """Where in the file we are: reads keys there, and words the errors."""

    def __init__(self, file: str, where: str, node: object = None) -> None:
        self.file, self.where, self.node = file, where, node

    def read(
        self,
        table: Mapping[str, Any],
        folder: Path,
        known: tuple[str, ...],
        readers: Mapping[str, Callable[[Any, Path], Any]] | None = None,
    ) -> dict[str, Any]:
        """`table` with each value as `NodeSpec` has it, or as the `readers` make it."""
        readers = READERS if readers is None else readers
        values = {}
        for key, value in table.items():
            if key not in known:
                self.unknown(key, known)
            try:
                values[key] = readers[key](value, folder)
            except msgspec.ValidationError as error:
                self.refuse(key, value, _in_words(str(error)))
            except InvalidValue as error:
                self.refuse(key, value, error.message)
        return values

    def unknown(self, key: str, known: tuple[str, ...]) -> NoReturn:
        # Without the value: somebody may have written a secret under a name we do not know.
        hint = did_you_mean(key, known) or f"; the keys here are {', '.join(known)}"
        if key == "name" and key not in known:
            hint = "; a name is each node's own: write it below its [[node]]"
        self._raise(key, f"{key}: there is no such key{hint}")

    def refuse(self, key: str, value: object, reason: str) -> NoReturn:
        shown = key if value is None else f"{key} = {_shown(value)}"
        self._raise(key, f"{shown}: {reason}")

    def _raise(self, key: str, message: str) -> NoReturn:
        place = ": ".join(part for part in (self.file, self.where) if part)
        raise InventoryError(f"{place}: {message}", file=self.file, node=self.node, key=key)


def _shown(value: object) -> str:
    """`value` for a message: short, and without the password that somebody may have put into an address."""
    text = re.sub(r"(://[^/@\s:'\"]*):.*@", r"\1:***@", repr(value))
    return text if len(text) <= 120 else text[:119] + "…"


def _quotes(text: str, complaint: str) -> str:
    """What to write instead, if the line that TOML complains of is `key = word`."""
    place = re.search(r"at line (\d+), column", complaint)
    lines = text.splitlines()
    if place is None or int(place[1]) > len(lines):
        return ""
    wrong = re.fullmatch(r"\s*([\w-]+)\s*=\s*([A-Za-z~/][^\s\"'#\[\]{}]*)\s*(#.*)?", lines[int(place[1]) - 1])
    if wrong is None:
        return ""
    if not wrong[0].isprintable():
        return ""
    word = wrong[2] if wrong[1] in READERS else "…"  # without a value that may be a secret
    return f'; text needs quotes: {wrong[1]} = "{word}"'


_KINDS: Final = {
    "str": "text, in quotes",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false, without quotes",
    "array": "a list, in [ ]",
    "object": "a table, in { }",
}


def _in_words(complaint: str) -> str:
    """What msgspec says of a value ("Expected `int` >= 16", "Expected `str`, got `int` - at `$.key`"), for people."""
    if match := re.match(r"Expected `(\w+)`(?: ([<>]=? [\d.]+))?", complaint):
        bound = f" {match[2].removesuffix('.0')}" if match[2] else ""
        inner = re.search(r"at `\$\.(\w+)`", complaint)
        where = f"{inner[1]!r} " if inner else ""
        return f"{where}has to be {_KINDS.get(match[1], match[1])}{bound}"
    if match := re.match(r"Object missing required field `(\w+)`", complaint):
        return f"{match[1]!r} is missing"
    return complaint
