"""Special functions of one tensor: `hub.special`."""

from __future__ import annotations

from tensorgraft.frontends.torch.core.promotion import PROMOTION
from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import special

FUNCTIONS = {
    "airy_ai": special.airy,
    "bessel_j0": special.j0,
    "bessel_j1": special.j1,
    "bessel_y0": special.y0,
    "bessel_y1": special.y1,
    "erfcx": special.erfcx,
    "modified_bessel_i0": special.i0,
    "modified_bessel_i1": special.i1,
    "modified_bessel_k0": special.modified_k(0, False),
    "modified_bessel_k1": special.modified_k(1, False),
    "ndtri": special.ndtri,
    "scaled_modified_bessel_k0": special.modified_k(0, True),
    "scaled_modified_bessel_k1": special.modified_k(1, True),
    "spherical_bessel_j0": special.spherical_j0,
}
for _name, _fn in FUNCTIONS.items():
    kernel(f"special_{_name}", promotion=PROMOTION.INT_TO_FLOAT)(_fn)
