"""Programs that need values while they are traced, and what is said of each, word for word. `{name}` is the transform.

The programs are written to a file `demo.py`, whose lines the errors show: each program is alone in its own, and its
first line is line 1.
"""

HEAD = """\
import numpy as np
import tensorgraft as tg
import tensorgraft.array_api as xp
from tensorgraft.random import key, rademacher

"""
# name -> (the function f(x, k), the error)
PROGRAMS = {
    "shape": (
        """\
def f(x, k):
    n = x.shape[0]
    k = xp.maximum(k, 1)
    samples = rademacher(key(0), (8, k))
    return samples
""",
        """\
ShapeError: demo.py:9: `samples = rademacher(key(0), (8, k))` needs k now, for the shape of rademacher(), but k is \
a traced int32 scalar.
  k became traced in demo.py:8: `k = xp.maximum(k, 1)`
Inside {name} an array has no value yet.
  keep it static:  make k of Python ints, with min and max, and pass those: each value is compiled
  bound and mask:  a size n that is always enough, and a mask of what counts: arange(n) < k""",
    ),
    "bounded shape": (
        """\
def f(x, k):
    k = xp.clip(k, 1, max=x.shape[0])
    return xp.ones((k, 3))
""",
        """\
ShapeError: demo.py:8: `return xp.ones((k, 3))` needs k now, for the shape of ones(), but k is a traced int32 scalar.
  k became traced in demo.py:7: `k = xp.clip(k, 1, max=x.shape[0])`
Inside {name} an array has no value yet.
  keep it static:  make k of Python ints, with min and max, and pass those: each value is compiled
  bound and mask:  a size n that is always enough, and a mask of what counts: arange(n) < k""",
    ),
    "argument": (
        """\
def f(x, k):
    return xp.zeros(k)
""",
        """\
ShapeError: demo.py:7: `return xp.zeros(k)` needs k now, for the shape of zeros(), but k is a traced int32 scalar.
  k became traced as an argument of f, demo.py:6
Inside {name} an array has no value yet.
  keep it static:  pass k as a Python int: each value is compiled
  bound and mask:  a size n that is always enough, and a mask of what counts: arange(n) < k""",
    ),
    "extent of values": (
        """\
def f(x, k):
    k = xp.astype(xp.sum(x), xp.int64)
    return xp.zeros((k,))
""",
        """\
ShapeError: demo.py:8: `return xp.zeros((k,))` needs k now, for the shape of zeros(), but k is a traced int64 scalar.
  k became traced in demo.py:7: `k = xp.astype(xp.sum(x), xp.int64)`
Inside {name} an array has no value yet.
  keep it static:  make k of Python ints, with min and max, and pass those: each value is compiled
  bound and mask:  a size n that is always enough, and a mask of what counts: arange(n) < k""",
    ),
    "shape by name": (
        """\
def f(x, k):
    size = (2, k + 1)
    return xp.reshape(x, size)
""",
        """\
ShapeError: demo.py:8: `return xp.reshape(x, size)` needs size[1] now, for the shape of reshape(), but size[1] is a \
traced int32 scalar.
  size[1] became traced in demo.py:7: `size = (2, k + 1)`
Inside {name} an array has no value yet.
  keep it static:  make size[1] of Python ints, with min and max, and pass those: each value is compiled
  bound and mask:  a size n that is always enough, and a mask of what counts: arange(n) < size[1]""",
    ),
    "slice": (
        """\
def f(x, k):
    y = x[:k]
    return y
""",
        """\
ShapeError: demo.py:7: `y = x[:k]` needs k now, but k is a traced int32 scalar.
  k became traced as an argument of f, demo.py:6
Inside {name} an array has no value yet.
  keep it static:  pass k as a Python int: each value is compiled
  bound and mask:  by axis 0: x * (arange(x.shape[0]) < k)""",
    ),
    "window": (
        """\
def f(x, k):
    return x[k : k + 2]
""",
        """\
ShapeError: demo.py:7: `return x[k : k + 2]` needs k now, but k is a traced int32 scalar.
  k became traced as an argument of f, demo.py:6
Inside {name} an array has no value yet.
  keep it static:   pass k as a Python int: each value is compiled
  keep the length:  take(x, k + arange(length), axis=0)""",
    ),
    "count": (
        """\
def f(x, k):
    for _ in range(k):
        x = x * 2
    return x
""",
        """\
ShapeError: demo.py:7: `for _ in range(k):` needs k now, but k is a traced int32 scalar.
  k became traced as an argument of f, demo.py:6
Inside {name} an array has no value yet.
  keep it static:  pass k as a Python int: each value is compiled
  loop by value:   tg.transforms.fori_loop(0, k, step, state)
  bound and mask:  for i in range(n): state = where(i < k, step(i, state), state)""",
    ),
    "condition": (
        """\
def f(x, k):
    if k > 2:
        return x
    return -x
""",
        """\
TracedValueError: demo.py:7: `if k > 2:` needs its condition now, but k > 2 is a traced bool scalar.
  k > 2 became traced in demo.py:7: `if k > 2:`
Inside {name} an array has no value yet.
  choose by value:  where(k > 2, a, b)
  branch by value:  tg.transforms.cond(k > 2, f, g, *operands)
  decide outside:   pass a Python bool: each is compiled""",
    ),
    "loop": (
        """\
def f(x, k):
    while xp.sum(x) > 1.0:
        x = x / 2
    return x
""",
        """\
TracedValueError: demo.py:7: `while xp.sum(x) > 1.0:` needs its condition now, but xp.sum(x) > 1.0 is a traced bool \
scalar.
  xp.sum(x) > 1.0 became traced in demo.py:7: `while xp.sum(x) > 1.0:`
Inside {name} an array has no value yet.
  loop by value:   tg.transforms.while_loop(condition, step, state)
  bound and mask:  for _ in range(n): state = where(xp.sum(x) > 1.0, step(state), state)""",
    ),
    "assertion": (
        """\
def f(x, k):
    assert xp.all(x > 0)
    return x
""",
        """\
TracedValueError: demo.py:7: `assert xp.all(x > 0)` needs its condition now, but xp.all(x > 0) is a traced bool \
scalar.
  xp.all(x > 0) became traced in demo.py:7: `assert xp.all(x > 0)`
Inside {name} an array has no value yet.
  check it later:  x = tg.transforms.error_if(x, ~(xp.all(x > 0)), message)""",
    ),
    "number": (
        """\
def f(x, k):
    return x * float(xp.mean(x))
""",
        """\
TracedValueError: demo.py:7: `return x * float(xp.mean(x))` needs the value of xp.mean(x) now, but xp.mean(x) is a \
traced float64 scalar.
  xp.mean(x) became traced in demo.py:7: `return x * float(xp.mean(x))`
Inside {name} an array has no value yet.
  stay an array:     use the array itself instead of its value
  look at it later:  return it, and read its value outside
  know it before:    pass it as a Python number: each value is compiled""",
    ),
    "item": (
        """\
def f(x, k):
    return x * k.item()
""",
        """\
TracedValueError: demo.py:7: `return x * k.item()` needs the value of k now, but k is a traced int32 scalar.
  k became traced as an argument of f, demo.py:6
Inside {name} an array has no value yet.
  stay an array:     use the array itself instead of its value
  look at it later:  return it, and read its value outside
  know it before:    pass it as a Python number: each value is compiled""",
    ),
    "number for a shape": (
        """\
def f(x, k):
    k = xp.minimum(k, x.shape[0])
    return xp.zeros((2, int(k)))
""",
        """\
ShapeError: demo.py:8: `return xp.zeros((2, int(k)))` needs the value of k now, but k is a traced int32 scalar.
  k became traced in demo.py:7: `k = xp.minimum(k, x.shape[0])`
Inside {name} an array has no value yet.
  keep it static:  make k of Python ints, with min and max, and pass those: each value is compiled
  bound and mask:  a size n that is always enough, and a mask of what counts: arange(n) < k""",
    ),
    "python's max": (
        """\
def f(x, k):
    return x * max(k, 1)
""",
        """\
TracedValueError: demo.py:7: `return x * max(k, 1)` needs its condition now, but what decides is a traced bool scalar.
  what decides became traced in demo.py:7: `return x * max(k, 1)`
Inside {name} an array has no value yet.
  stay an array:   maximum(k, 1)
  keep it static:  max(k, 1) of Python numbers""",
    ),
    "mask": (
        """\
def f(x, k):
    return x[x > 2]
""",
        """\
ShapeError: demo.py:7: `return x[x > 2]` needs the values of x > 2 now, for the shape of its result, but x > 2 is a \
traced bool array of shape (4,).
  x > 2 became traced in demo.py:7: `return x[x > 2]`
Inside {name} an array has no value yet.
  keep the shape:  where(x > 2, x, 0)
  do it outside:   before the call, and pass the result""",
    ),
    "positions": (
        """\
def f(x, k):
    (at,) = xp.nonzero(x)
    return at
""",
        """\
ShapeError: demo.py:7: `(at,) = xp.nonzero(x)` needs the values of x now, for the shape of its result, but x is a \
traced float64 array of shape (4,).
  x became traced as an argument of f, demo.py:6
Inside {name} an array has no value yet.
  keep the shape:  a mask of what counts, instead of positions
  do it outside:   before the call, and pass the result""",
    ),
}
