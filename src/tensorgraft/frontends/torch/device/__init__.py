"""The device interface of PyTorch other than operators: streams, storages, files, autocast, TorchScript."""
