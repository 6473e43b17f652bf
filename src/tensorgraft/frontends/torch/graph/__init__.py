"""Programs as graphs: `torch.compile`, and functions grafted onto other frameworks."""
