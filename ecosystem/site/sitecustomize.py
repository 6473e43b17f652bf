"""The released torchvision is built for CUDA; beside a PyTorch without, two of its operators lack their schemas."""

import importlib.abc
import importlib.machinery
import sys


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            library = torch.library.Library("torchvision", "FRAGMENT")
            library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            sys.modules["_torchvision_schemas"] = library  # type: ignore[assignment]  # a library's definitions end with it
        return None


sys.meta_path.insert(0, _BeforeTorchvision())
