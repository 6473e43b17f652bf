"""What PyTorch calls when it is imported (entry point group `torch.backends`): `device="graft"` works in any script."""


def autoload() -> None:
    """Register the device. JAX and the other frameworks are imported on first use."""
    from tensorgraft.frontends.torch import setup

    setup.install()
