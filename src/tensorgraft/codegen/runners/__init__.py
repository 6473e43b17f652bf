"""Scripts that run generated files where neither tensorgraft nor the source framework is.

`python -I jax.py model.py model.safetensors FUNCTION JOB`: in the folder JOB `inputs_K.npz` has the arrays of the K-th
example, `a0, a1, ...`, and `outputs_K.npz` what came of it: `o:PLACE`, and `g:NAME` of those with the entry
`gradients`. They import the framework of the target alone.
"""
