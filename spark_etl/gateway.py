"""Spark's way to Java, with a memory. PySpark asks Java for a class by its name, and for a function of that class,
whenever a column is made, and for some names Java searches all its archives: half of what an audit asked Java was that.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JVMView  # type: ignore[import-untyped]
from pyspark.traceback_utils import SCCallSiteSync


class _Known(JavaClass):
    """Its static functions are asked for once each."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if callable(found):
            self.__dict__[name] = found
        return found


class _Classes(JVMView):
    """So are classes."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if type(found) is JavaClass:
            found.__class__ = _Known
            self.__dict__[name] = found
        return found


def remember(jvm: JVMView) -> None:
    """From now on it asks once. Nor is Java told which line of this program each job is for."""
    if type(jvm) is JVMView:
        jvm.__class__ = _Classes
    SCCallSiteSync._spark_stack_depth = 1
