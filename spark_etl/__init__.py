"""The audit of a run, with Spark."""

import warnings

# Printed by pyspark at import when it finds a newer pandas; nothing here uses pandas.
warnings.filterwarnings("ignore", category=FutureWarning, module=r"pyspark\.")
