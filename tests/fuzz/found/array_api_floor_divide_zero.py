# array_api seed 100592 on torch
#   v3: -0.0 where the quotient is positive
v0 = xp.asarray([-0.5, -1.5, 0.5], dtype=xp.float64, device=D)
v1 = xp.asarray([-1.0, -2.0, -2.0], dtype=xp.float64, device=D)
v2 = v0 // v1
v3 = xp.atan2(v2, v1)
