"""The OpenAPI document as one HTML page for people, without scripts and without anything from elsewhere. Pure."""

from __future__ import annotations

from html import escape
from typing import Any

_STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h2 { border-top: 1px solid #ccc; padding-top: 1rem; font-size: 1.05rem }
code, h2 { font-family: ui-monospace, monospace }
table { border-collapse: collapse; margin: .5rem 0 } td, th { text-align: left; padding: .15rem 1rem .15rem 0;
vertical-align: top } th { font-weight: 600 } .method { display: inline-block; min-width: 5rem; color: #06c }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } .method, a { color: #6af } }
"""
_SHOWN = ("get", "put", "post", "delete")
"""HEAD and OPTIONS are what they are everywhere."""
_REFERENCE = "#/components/schemas/"


def page(document: dict[str, Any]) -> bytes:
    """Of a document by `kvstore.api.openapi.document`."""
    info = document["info"]
    title = f"{escape(info['title'])} {escape(info['version'])}"
    parts = [f"<h1>{title}</h1><p>{escape(info['description'])} <a href=openapi.json>openapi.json</a> is this page for"
             " programs. GET stands for HEAD, too, and every path answers OPTIONS.</p>"]  # fmt: skip
    for path, methods in document["paths"].items():
        parts += [_operation(path, method, methods[method]) for method in _SHOWN if method in methods]
    parts.append("<h1>Types</h1>")
    parts += [_type(name, schema) for name, schema in document["components"]["schemas"].items()]
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
    return (head + "\n".join(parts) + "\n</html>\n").encode()


def _operation(path: str, method: str, operation: dict[str, Any]) -> str:
    rows = [
        (one["name"], f"{one['in']}{', required' if one['required'] else ''}", _kind(one["schema"]),
         escape(one["description"]))
        for one in operation.get("parameters", ())
    ]  # fmt: skip
    if "requestBody" in operation:
        rows.append(("body", "", _content(operation["requestBody"]), ""))
    rows += [
        (status, "", _content(answer), escape(answer["description"]))
        for status, answer in operation["responses"].items()
    ]
    name = escape(operation["operationId"], quote=True)
    return (
        f'<h2 id="{name}"><span class=method>{method.upper()}</span> {escape(path)}</h2>'
        f"<p>{escape(operation['summary'])}</p>{_table(rows)}"
    )


def _type(name: str, schema: dict[str, Any]) -> str:
    needed = schema.get("required", ())
    rows = [
        (field, "required" if field in needed else "", _kind(of_field), "")
        for field, of_field in schema.get("properties", {}).items()
    ]
    text = escape(schema.get("description", ""))
    shown = _table(rows) if rows else f"<p>{_kind(schema)}</p>"
    return f'<h2 id="type-{escape(name, quote=True)}">{escape(name)}</h2><p>{text}</p>{shown}'


def _table(rows: list[tuple[str, str, str, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{place}<td>{kind}<td>{text}" for name, place, kind, text in rows
    )
    return f"<table>{cells}</table>" if rows else ""


def _content(side: dict[str, Any]) -> str:
    return "<br>".join(
        f"<code>{escape(media)}</code> {_kind(one['schema']) if 'schema' in one else 'any bytes'}"
        for media, one in side.get("content", {}).items()
    )


def _kind(schema: dict[str, Any]) -> str:
    """In a few words; HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(_REFERENCE), quote=True)
        return f'<a href="#type-{name}">{name}</a>'
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " or ".join([_kind(one) for one in schema[several]])
    if "enum" in schema:
        return " or ".join([f"<code>{escape(str(one))}</code>" for one in schema["enum"]])
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}" if schema.get("items") else "list"
    return escape(" ".join([str(schema[name]) for name in ("type", "format") if name in schema]) or "anything")
