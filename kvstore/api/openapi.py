"""The OpenAPI 3.1 document of the HTTP interface, from the table of routes and the types that validate. Pure."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec

from kvstore.api.http1 import PHRASES
from kvstore.api.problem import ProblemJson
from kvstore.api.routes import BYTES, EVENTS, HTML, OF_ALL, ROUTES, Parameter, Route

_FORMS = (
    "Keys and values stand in `key` and `value` where they are text, else as base64 in `key_b64` and `value_b64`. In "
    "application/msgpack they stand in `key` and `value` as they are (bin). Problems are JSON."
)
_PROBLEMS = (400, 421)
"""Any request may be malformed, or for another cluster."""


def document(version: str) -> dict[str, Any]:
    """JSON-ready. version: of the program."""
    named = [kind for route in ROUTES for side in (route.body, route.answer) for kind in _kinds(side)]
    kinds = [kind for kind in named if kind not in (None, BYTES, EVENTS, HTML, str)]
    template = "#/components/schemas/{name}"
    schemas, components = msgspec.json.schema_components([*kinds, ProblemJson], ref_template=template)
    of_kind = {str(kind): schema for kind, schema in zip(kinds, schemas[:-1], strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = paths.setdefault(route.path, {"options": _options(route)})
        path[route.method.lower()] = _operation(route, of_kind, schemas[-1])
        if route.method == "GET":
            path["head"] = _operation(route._replace(name=f"head_{route.name}", answer=None), of_kind, schemas[-1])
    return {
        "openapi": "3.1.0",
        "info": {"title": "kvstore", "version": version, "description": _FORMS},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(route: Route, of_kind: dict[str, Any], problem: dict[str, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status in route.statuses:
        responses[str(status)] = {"description": PHRASES[status]}
        if route.answer is not None and status != HTTPStatus.NOT_MODIFIED:
            responses[str(status)]["content"] = _content(route, route.answer, of_kind)
    denied = () if route.access == "open" else (401, 403)
    for status in sorted({*_PROBLEMS, *route.problems, *denied}):
        responses[str(status)] = {"description": PHRASES[status]}
        if not route.name.startswith("head_"):
            responses[str(status)]["content"] = {"application/problem+json": {"schema": problem}}
    operation: dict[str, Any] = {"operationId": route.name, "summary": route.text, "responses": responses}
    if denied:
        operation["security"] = [{}, {"token": []}]
    operation["parameters"] = [_parameter(parameter) for parameter in (*route.parameters, *OF_ALL)]
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(route, route.body, of_kind)}
    return operation


def _kinds(side: Any) -> tuple[Any, ...]:
    return side if isinstance(side, tuple) else (side,)


def _options(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = {"summary": "The methods of this path, in Allow."}
    of_path = [parameter for parameter in route.parameters if parameter.place == "path"]
    placed = [_parameter(parameter._replace(schema={"type": "string"})) for parameter in of_path]
    return found | {"parameters": placed, "responses": {"204": {"description": "No Content"}}}


def _parameter(parameter: Parameter) -> dict[str, Any]:
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "schema": parameter.schema,
        "description": parameter.text,
    }


def _content(route: Route, kind: Any, of_kind: dict[str, Any]) -> dict[str, Any]:
    if kind is BYTES:
        return {"application/octet-stream": {}}
    if kind is EVENTS:
        return {"text/event-stream": {"schema": {"type": "string"}}}
    if kind is HTML:
        return {"text/html": {"schema": {"type": "string"}}}
    if kind is str:
        return {"text/plain": {"schema": {"type": "string"}}}
    schemas = [of_kind[str(one)] for one in _kinds(kind)]
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {media_type: {"schema": schema} for media_type in route.media_types}
