"""The page and a recording as one file, which needs no server and fetches nothing.

The page's modules have their imports at their top, all from beside them, and export functions, classes and constants
where they declare them. Each becomes a function of its own in one script, in the order in which they need each other.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("page")
MAIN = "main.js"

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.-]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (async function|function|class|const) (\w+)", re.MULTILINE)
_STYLE = re.compile(r'<link rel="stylesheet" href="page/([\w.-]+)">\n')
_SCRIPT = re.compile(r'<script (?:type="module" )?src="page/([\w.-]+)"></script>\n')


def single_page(recording: Mapping[str, Any], title: str) -> str:
    """HTML. recording: what the page shows of a run; `scenario` and `at`, the step to begin with, may be in it."""
    index = (PAGE / "index.html").read_text()
    style = "\n".join((PAGE / name).read_text() for name in _STYLE.findall(index))
    libraries = [_closed((PAGE / name).read_text()) for name in _SCRIPT.findall(index) if name != MAIN]
    scripts = [*libraries, _closed(joined(MAIN))]
    allowed = " ".join(map(_hash, scripts))
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {allowed}"
    content = json.dumps(recording, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
    head = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n<style>{style}</style>\n'
    tail = "".join(f"<script{kind}>{text}</script>\n" for kind, text in _kinds(scripts))
    page = _SCRIPT.sub("", _STYLE.sub("", index))
    page = re.sub(r"<title>.*?</title>", lambda _: f"<title>{html.escape(title)}</title>", page)
    page = page.replace("</head>", f"{head}</head>", 1)
    data = f'<script type="application/json" id="recording">{content}</script>\n'
    return page.replace("</body>", f"{data}{tail}</body>", 1)


def joined(main: str) -> str:
    """The module and all that it needs as one script."""
    done: dict[str, str] = {}
    _need(main, done, ())
    return "\n".join(done.values())


def _need(name: str, done: dict[str, str], above: tuple[str, ...]) -> None:
    if name in above:
        raise ValueError(f"modules import each other in a circle: {' -> '.join((*above, name))}")
    if name in done:
        return
    source = (PAGE / name).read_text()
    for _, needed in _IMPORT.findall(source):
        _need(needed, done, (*above, name))
    exported = ", ".join(found[1] for found in _EXPORT.findall(source))
    body = _EXPORT.sub(r"\1 \2", _IMPORT.sub(lambda found: f"const {{{found[1]}}} = {_scope(found[2])};\n", source))
    done[name] = f"const {_scope(name)} = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();\n"


def _scope(name: str) -> str:
    return "module_" + re.sub(r"\W", "_", name.removesuffix(".js"))


def _kinds(scripts: list[str]) -> list[tuple[str, str]]:
    """Libraries are plain scripts, which run first; the page's own is a module, which waits for the document."""
    return [("", text) for text in scripts[:-1]] + [(' type="module"', scripts[-1])]


def _closed(script: str) -> str:
    """Nothing in it may look like its end."""
    return script.replace("</script", "<\\/script")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
