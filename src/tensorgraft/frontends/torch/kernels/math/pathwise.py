"""Pathwise derivatives of samples of gamma and Dirichlet distributions: `hub.pathwise`."""

from __future__ import annotations

from tensorgraft.frontends.torch.core.spec import kernel
from tensorgraft.hub import pathwise

kernel("_standard_gamma_grad", meta=lambda alpha, x: x.new_empty(x.shape))(pathwise.gamma)
kernel("_dirichlet_grad", meta=lambda x, alpha, total: x.new_empty(x.shape))(pathwise.dirichlet)
