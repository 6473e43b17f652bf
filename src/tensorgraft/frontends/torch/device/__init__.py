"""The device interface of PyTorch besides operators: streams, storages, files, autocast, TorchScript."""
