# source seed 1960349 on torch
#   NotImplementedError: "clamp_min_scalar_cpu" not implemented for 'Bool', expected none
v0 = data("bool", (3, 3), 2)
v3 = v0.at[..., -0].max(False)
v4 = jnp.minimum(v0, True)
v5 = jnp.maximum(v0, True)
