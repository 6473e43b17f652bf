"""Why some of ONNX's backend tests cannot pass, or do not yet."""

from __future__ import annotations

import re

DRAWN = "random numbers: the expected ones are NumPy's, which ONNX does not prescribe"
SUMS = "products are summed in float32: two elements differ by a unit"
# a regular expression of tests -> the reason; `backends` after "@" where it is not all of them
REASONS = {
    r"test_(bernoulli|training_dropout)(?!.*zero_ratio).*": DRAWN,
    r"test_gradient_of_.*": "ai.onnx.preview.training.Gradient: derivatives are those of the framework that runs it",
    r"test_attention_4d_causal_fp16(_expanded)?@numpy jax torch": SUMS,
    r"test_loop16_seq_none": "the runner cannot compare an optional of no type",
    r"test_dft_inverse(_opset19)?@torch": "zeros that differ by 2e-7, beyond the absolute tolerance of 1e-7",
    r"test_dft(_axis|_rfft)?(_opset19)?@tensorflow": "zeros that differ by 2e-6, beyond the absolute tolerance of 1e-7",
    r"test_cast_e8m0_FLOAT(16)?_to_FLOAT8E8M0@tensorflow": "TensorFlow flushes 2^-127, which is subnormal, to zero",
}


def reason(test: str, on: str) -> str | None:
    """Return why a test fails on a backend, or None if it is expected to pass."""
    name = test.removesuffix("_cpu")
    for key, text in REASONS.items():
        pattern, _, backends = key.partition("@")
        if re.fullmatch(pattern, name) and (not backends or on in backends.split()):
            return text
    return None
