"""The checks: functions from DataFrames to a DataFrame of violations (`schemas.VIOLATIONS`). No IO."""
