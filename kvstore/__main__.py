"""`python -m kvstore` is `kvstore`: the command line, or one line that says what to install for it."""

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run one command and exit."""
    try:
        from kvstore.cli import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("client_sdk", "kvstore", "multicast", "workloads"):
            raise
        print(
            f"error: the command line needs {error.name}, which is not installed: pip install 'kvstore[server]'",
            file=sys.stderr,
        )
        sys.exit(1)
    run()


if __name__ == "__main__":
    main()
