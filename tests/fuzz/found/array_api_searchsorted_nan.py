# array_api seed 103513 on torch
#   v1: NaN was less than everything
v0 = xp.asarray([-1.0, 2.0, xp.nan], dtype=xp.float64, device=D)
v1 = xp.searchsorted(v0, xp.asarray([0.0, xp.nan, 3.0], dtype=xp.float64, device=D))
v2 = xp.searchsorted(v0, xp.asarray([0.0, xp.nan, 3.0], dtype=xp.float64, device=D), side="right")
