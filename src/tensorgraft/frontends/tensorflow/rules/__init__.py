"""The rules of TensorFlow's raw operations, by area. Importing a module registers its rules; `rule` says what a rule is."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
