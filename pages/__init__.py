"""What makes the site out of `docs/`: pages whose programs run, the reference out of docstrings, tables of coverage."""
