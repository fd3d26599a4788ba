"""`openapi.yaml` as a judge of what a server answers. Stricter than it says: no member that it does not name."""

from __future__ import annotations

import re
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from jupyter_gpufit.server.handlers import OPENAPI

__all__ = ["check", "document", "operations"]

_DOCUMENT: dict[str, Any] = yaml.safe_load(OPENAPI.read_text())


def document() -> dict[str, Any]:
    return _DOCUMENT


def operations() -> set[tuple[str, str]]:
    """All (method, path template) pairs."""
    methods = {"get", "put", "post", "delete", "patch", "head", "options"}
    return {(method.upper(), path) for path, item in _DOCUMENT["paths"].items() for method in item if method in methods}


def check(method: str, path: str, status: int, content_type: str, body: Any) -> None:
    """Fails unless `openapi.yaml` has that answer to `method` on `path` (below the prefix, query allowed)."""
    path = "/" + path.partition("?")[0]
    template = _template(path)
    assert template is not None, f"{path} is not described"
    operation = _DOCUMENT["paths"][template].get(method.lower())
    assert operation is not None, f"{method} {template} is not described"
    described = operation["responses"].get(str(status))
    if described is None:
        assert status >= 400, f"{method} {template}: {status} is not described"
        described = operation["responses"]["default"]
    if "$ref" in described:
        described = _DOCUMENT["components"]["responses"][described["$ref"].rpartition("/")[2]]
    media = content_type.partition(";")[0]
    assert media in described["content"], f"{method} {template} {status}: {media} is not described"
    schema = {"components": _strict(_DOCUMENT["components"]), **_strict(described["content"][media]["schema"])}
    errors = list(Draft202012Validator(schema).iter_errors(body))
    assert not errors, f"{method} {template} {status}: " + "; ".join(
        f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in errors
    )


def _template(path: str) -> str | None:
    for template in sorted(_DOCUMENT["paths"], key=lambda each: each.count("{")):
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", re.escape(template).replace(r"\{", "{").replace(r"\}", "}")), path):
            return str(template)
    return None


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made
