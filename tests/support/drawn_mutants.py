"""Print all mutants that cosmic-ray makes of a file of psched, as lines of JSON.

``support.mutants`` calls this module in an environment of its own, ``bin/venv mutants``, because
cosmic-ray needs many packages that psched's tests do not.
"""

import ast
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

OPERATORS = (
    # A comparison whose bound is off by one, or the contrary one.
    *(
        f"ReplaceComparisonOperator_{pair}"
        for pair in ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq")
    ),
    *(f"ReplaceComparisonOperator_{pair}" for pair in ("Is_IsNot", "IsNot_Is")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul")),
    *(f"ReplaceBinaryOperator_{pair}" for pair in ("FloorDiv_Mul", "Mod_Mul")),
    *("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
    *("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer"),
    *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop"),
)
"""Those of cosmic-ray's operators that make what a programmer might have written by mistake."""

_DATACLASS = "\n@dataclass(frozen=True, slots=True"


def mutants(text: str) -> Iterator[str]:
    """The texts of a file with one change each."""
    form = _form(text)
    for name in OPERATORS:
        operator = get_operator(f"core/{name}")()
        for occurrence in itertools.count():
            changed = mutate_code(text.encode(), operator, occurrence)
            if changed is None:
                break
            if _form(changed) == form and _is_python(changed):
                yield changed


def _form(text: str) -> tuple[int, int]:
    """How dataclasses are made, and which arguments have a name, which is no rule."""
    return text.count(_DATACLASS), len(re.findall(r"[(\s]\*,", text))


def _is_python(text: str) -> bool:
    """Whether Python can read a text: it cannot read ``if not found := find()``."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


for file in sys.argv[1:]:
    for mutated in mutants(Path(file).read_text()):
        sys.stdout.write(json.dumps([file, mutated]) + "\n")
