"""`python -m kvstore`: clusters and replicas (`kvstore.cli`), or one line that says what to install for it."""

from typing import NoReturn

from kvstore.extras import needed


def main() -> NoReturn:
    """Run one command and exit."""
    with needed("server"):
        from kvstore.cli import main as run
    run()


if __name__ == "__main__":
    main()
