"""The examples of the pages are run, one after the other as a reader would, all against one live cluster.

In a block of Python what stands behind a `print` is what it prints. In a block of bash `# prints X` says that X is in
what the block prints, after what was said before.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import client_sdk
from tests.client_sdk import reference
from tests.client_sdk.stores import Place, cluster
from tests.house import ROOT

__all__ = ["cluster"]

ADDRESS = "http://127.0.0.1:7500"
PAGES = ("client_sdk/TUTORIAL.md", "kvstore/HTTP.md", "kvstore/ETCD.md", "kvstore/CONSISTENCY.md", "README.md")
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PRELUDE = r"""set -aeuo pipefail
. "$KNOWN"
curl() { command curl --fail-with-body "$@"; }
kvstore() {
  exec 3<>"/dev/tcp/127.0.0.1/$COMMANDS"
  printf '%s\0' "$#" "$@" >&3
  local said
  said=$(cat <&3)
  exec 3>&-
  sed '$d' <<<"$said"
  return "$(tail -n 1 <<<"$said")"
}
"""
END = """
export -p > "$KNOWN"
"""
"""A block knows what those before it have set. `kvstore` is run by a fork of a process that has read its modules
(`COMMANDS`)."""

COMMANDS = """
import contextlib, io, os, signal, socket, sys
from workloads.cli import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["get", "nothing"])
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    while True:
        connection, _ = server.accept()
        if os.fork():
            connection.close()
            continue
        received = b""
        while not received or received.count(b"\\0") <= int(received.split(b"\\0")[0]):
            received += connection.recv(65536)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        sys.argv = ["kvstore", *map(os.fsdecode, received.split(b"\\0")[1:-1])]
        os.dup2(connection.fileno(), 1)
        os.dup2(connection.fileno(), 2)
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        sys.stdout.flush()
        os.write(1, b"\\n%d" % status)
        os._exit(0)
"""


@pytest.fixture(scope="module")
def environment(cluster: Place, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of the blocks in bash."""
    variables = tmp_path_factory.mktemp("bash") / "known"
    variables.touch()
    known = {**os.environ, "KNOWN": str(variables), "KVSTORE_CLUSTER": cluster.urls[0], "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COMMANDS]
    with subprocess.Popen(command, env=known, stdout=subprocess.PIPE, text=True) as commands:
        assert commands.stdout is not None
        yield {**known, "COMMANDS": commands.stdout.readline().strip()}
        commands.kill()


def blocks(page: Path) -> Iterator[tuple[str, int, str]]:
    """(language, line before the first one, text)."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        yield found[1], text[: found.start(2)].count("\n"), found[2]


def run_python(code: str, name: str, lines_before: int, known: dict[str, Any]) -> None:
    """AssertionError where it prints something else than it says."""
    printed: dict[int, list[str]] = {}

    def note(*values: object) -> None:
        printed.setdefault(inspect.stack()[1].lineno, []).append(" ".join(map(str, values)))

    code = "\n" * lines_before + code
    known |= {"print": note, "__name__": "__main__"}
    exec(compile(code, name, "exec", dont_inherit=True), known)
    lines = enumerate(code.splitlines(), 1)
    said = {n: found[1] for n, line in lines if (found := re.search(r"print\(.*\) +# (.*)$", line))}
    told = {n: "; ".join(parts) for n, parts in printed.items()}
    assert {n: told.get(n) for n in said} == said, name


def run_bash(code: str, name: str, environment: dict[str, str]) -> None:
    """AssertionError where a command fails, or does not print what it says."""
    done = subprocess.run(
        ["bash", "-c", PRELUDE + code + END], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{name}: {done.stderr}{done.stdout}"
    rest = done.stdout
    for said in re.findall(r"# prints (.*)$", code, re.MULTILINE):
        assert said.strip() in rest, f"{name}: {said!r} is not in {rest!r}"
        rest = rest.partition(said.strip())[2]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_do_what_they_say(page: str, cluster: Place, environment: dict[str, str]) -> None:
    with client_sdk.Client(cluster.urls) as store:
        store.delete_range("")
    known: dict[str, Any] = {}
    ran = 0
    for language, lines_before, text in blocks(ROOT / page):
        code, name = text.replace(ADDRESS, cluster.urls[0]), f"{page}, line {lines_before + 1}"
        if language == "python":
            run_python(code, name, lines_before, known)
        else:
            run_bash(code, name, environment)
        ran += 1
    assert ran


def test_the_reference_is_what_the_docstrings_say_and_has_every_name_of_the_package() -> None:
    text = reference.PAGE.read_text()
    assert text == reference.page(), "python -m tests.client_sdk.reference"
    told = set(re.findall(r"^(?:###+ (?:\w+\.)?|- \*\*)(\w+)", text, re.MULTILINE))
    assert set(client_sdk.__all__) - told - set(reference.BLOCKING) - reference.TYPES == {"codecs"}
    blocking = {name for name in dir(client_sdk.Client) if not name.startswith("_")}
    assert blocking == {name for name in dir(client_sdk.AsyncClient) if not name.startswith("_")}


def test_what_is_not_printed_is_noticed() -> None:
    with pytest.raises(AssertionError):
        run_python("print(1 + 1)  # 3\n", "page", 0, {})
    run_python("for i in range(2):\n    print(i)  # 0; 1\n", "page", 0, {})
    for wrong in ("echo a  # prints b\n", "false\n", "echo b; echo a  # prints a\necho c  # prints b\n"):
        with pytest.raises(AssertionError):
            run_bash(wrong, "page", {**os.environ, "KNOWN": "/dev/null"})
