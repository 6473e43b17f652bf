"""A module of StableHLO (a file of `jax.export`) as a function of JAX: operation by operation in those of `jax.lax`.

JAX itself compiles such a module as it is, and so no other framework can run it. As a function it is traced as any
other: it is grafted, differentiated and written as source. Sizes that the module leaves open are numbers here, because
shapes are known whenever the function is traced.
"""

from tensorgraft.frontends.jax.stablehlo import elementwise, products, reductions, shapes
from tensorgraft.frontends.jax.stablehlo.errors import UnsupportedStableHLOError
from tensorgraft.frontends.jax.stablehlo.program import function_of, lacking, naming, operators

__all__ = [
    "UnsupportedStableHLOError",
    "elementwise",
    "function_of",
    "lacking",
    "naming",
    "operators",
    "products",
    "reductions",
    "shapes",
]
