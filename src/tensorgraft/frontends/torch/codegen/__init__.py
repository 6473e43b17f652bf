"""PyTorch modules as traces of which source is written (`tensorgraft.codegen`)."""
