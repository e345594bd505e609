"""Packages whose public names are loaded on first use, so that importing one submodule does not import the whole package."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Facade(ModuleType):
    """A package with lazy names. The import system binds each submodule on its package when it is loaded; a public function of
    the same name (`lowering.plan`) wins over it."""

    def __getattr__(self, name: str) -> Any:
        homes = self.__dict__["__homes__"]
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home), name)
        ModuleType.__setattr__(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in self.__dict__["__homes__"]:
            return
        ModuleType.__setattr__(self, name, value)


def lazy(package: str, homes: dict[str, str]) -> None:
    """Give the package (its `__name__`) the names of `homes`: name -> module that has it. Call it at the end of `__init__`."""
    module = sys.modules[package]
    module.__dict__["__homes__"] = homes
    module.__class__ = _Facade
