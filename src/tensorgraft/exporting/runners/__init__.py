"""Scripts that run exported files, where neither tensorgraft nor the framework of the program is.

`python -I -c SCRIPT FILE JOB`: in the folder JOB `job.json` has the structure of the arguments, `inputs_K.npz` the
arrays of the K-th example, `a0, a1, ...`, and `outputs_K.npz` gets the results by their places.
"""
