"""The entry point of installations from before `torch_entry`, whose metadata name it: the front end is loaded with
`import torch`."""

from tensorgraft.frontends.torch_entry import autoload

__all__ = ["autoload"]
