"""What PyTorch asks of a device besides operators: streams, storages, files, autocast, TorchScript."""
