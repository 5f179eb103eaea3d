"""`python -m spark_etl`."""

from spark_etl.jobs import app

if __name__ == "__main__":
    app(prog_name="python -m spark_etl")
