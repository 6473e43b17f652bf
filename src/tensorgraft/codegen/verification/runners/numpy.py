"""Runs a generated file of NumPy or the Array API."""

from tensorgraft.codegen.verification.runners.common import flat, hide, main, normal, np, program_of, uniform, widened

hide("torch", "tensorgraft", "tensorflow", "jax")


def compute(module, name, weights, arrays, example):
    program, state = program_of(module, name, weights)
    if "key" in example:
        arrays[-1] = SameGenerator() if "numbers" in example else np.random.default_rng(arrays[-1])
    with np.errstate(all="ignore"):
        out = flat(program(*state, *arrays))
    return {f"o:{k}": widened(x) for k, x in out.items() if hasattr(x, "dtype")}


class SameGenerator:
    """A generator whose numbers are those that were drawn for the program that results are compared with."""

    def random(self, shape=(), dtype=np.float32):
        return uniform(shape).astype(dtype)

    def standard_normal(self, shape=(), dtype=np.float32):
        return normal(shape).astype(dtype)

    def standard_exponential(self, shape=(), dtype=np.float32):
        return -np.log1p(-uniform(shape)).astype(dtype)

    def integers(self, low, high, size=(), dtype=np.int64):
        return (low + np.floor(uniform(size) * (high - low))).astype(dtype)

    def permutation(self, n):
        return np.argsort(uniform((n,)))

    def spawn(self, n):
        return [self] * n


main(compute)
