"""`python -m workloads` is `kvstore`: all commands, or one line that says what to install for them."""

from typing import NoReturn

from kvstore.extras import needed


def main() -> NoReturn:
    """Run one command and exit."""
    with needed("server"):
        from workloads.cli import main as run
    run()


if __name__ == "__main__":
    main()
