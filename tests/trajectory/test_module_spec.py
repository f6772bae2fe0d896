"""Functions in configurations, by their names: the strings of the original, and names that cannot be found."""

import fractions
import functools
import json
import math

import pytest
from helpers.golden_trajectories import text

from bushel._src.trajectory.config_values import ModuleSpec


@pytest.mark.parametrize("case", text("utils/module_spec"))
def test_strings_of_the_original(case):
    assert ModuleSpec.to_string(case["spec"]) == case["to_string"]


def test_a_function_by_itself_or_by_its_name():
    spec = ModuleSpec.create(math.pow, 2.0)
    assert spec == ModuleSpec.create("math:pow", 2.0) == {"module": "math", "name": "pow", "args": (2.0,), "kwargs": {}}
    assert ModuleSpec.instantiate(spec)(5) == 32
    assert ModuleSpec.instantiate(json.loads(json.dumps(spec)))(5) == 32  # also from a file
    assert ModuleSpec.to_string(ModuleSpec.create("a:f", "x", 1, None, k=[2])) == "a:f(x, 1, None, k=[2])"


def test_members_of_classes():
    spec = ModuleSpec.create(fractions.Fraction.limit_denominator, max_denominator=10)
    assert spec["name"] == "Fraction.limit_denominator"
    assert ModuleSpec.instantiate(spec)(fractions.Fraction(33, 100)) == fractions.Fraction(1, 3)


def test_what_cannot_be_named():
    for nameless in (lambda x: x, functools.partial(math.pow, 2)):
        with pytest.raises(ValueError, match="cannot be imported by a name"):
            ModuleSpec.create(nameless)
    for name in ("math.pow", "a:b:c", ":f", "a:"):
        with pytest.raises(ValueError, match=f"form 'module:name', got '{name}'"):
            ModuleSpec.create(name)
    with pytest.raises(ValueError, match="no_such_module:f cannot be imported"):
        ModuleSpec.instantiate(ModuleSpec.create("no_such_module:f"))
    with pytest.raises(ValueError, match="math:no_such cannot be imported"):
        ModuleSpec.instantiate(ModuleSpec.create("math:no_such"))
    with pytest.raises(ValueError, match=r"A spec has the keys .*, got \['module'\]"):
        ModuleSpec.instantiate({"module": "math"})
