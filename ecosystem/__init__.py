"""Other people's programs and test suites, unmodified, natively and on devices of this library: `make ecosystem`.

`programs/torch` are scripts: they run by `python` and by `tensorgraft run`, and print a line of JSON.
`programs/jax` and `programs/arrays` say `cases()`: a name, a function, its arguments, run by their own framework and on
the others. `suites` are tests that other projects publish. None of them knows of tensorgraft.
"""
