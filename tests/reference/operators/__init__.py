"""The attention operators that have a file of their own here; being in this folder is all it takes.  Such a file has

    SETTINGS     {setting of train_vit: default}; may be missing
    OPERATORS    {name: (shapes of its own parameters, map)}, as in ../rival_operators.py; may be missing
    MIXERS       the same for operators whose map takes x, as in ../mixer_reference.py; may be missing
    CASES        {fixture: settings of vit_reference.Config}
    check_timm   a function that compares the operator with timm's and returns how many comparisons failed; may be
                 missing, and timm is imported in it only (../check_timm.py --operators calls it)
"""

import importlib
import pkgutil

MODULES = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
SETTINGS = {name: default for module in MODULES for name, default in getattr(module, "SETTINGS", {}).items()}
OPERATORS = {name: operator for module in MODULES for name, operator in getattr(module, "OPERATORS", {}).items()}
MIXERS = {name: operator for module in MODULES for name, operator in getattr(module, "MIXERS", {}).items()}
CASES = {name: settings for module in MODULES for name, settings in module.CASES.items()}
