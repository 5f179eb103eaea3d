"""`python -m spark_etl`."""

import sys


def main() -> None:
    """The command line. Interrupted while it is still being imported: status 130, as later on."""
    try:
        from spark_etl.jobs import app
    except KeyboardInterrupt:
        sys.exit(130)
    app(prog_name="python -m spark_etl")


if __name__ == "__main__":
    main()
