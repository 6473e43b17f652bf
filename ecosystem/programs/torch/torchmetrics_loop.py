"""torchmetrics: a collection of metrics updated over batches on the device, reset, merged and computed."""

import json

import torch
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassConfusionMatrix,
    MulticlassF1Score,
)
from torchmetrics.image import PeakSignalNoiseRatio, StructuralSimilarityIndexMeasure
from torchmetrics.regression import MeanSquaredError, PearsonCorrCoef, R2Score

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
draw = torch.Generator().manual_seed(0)
classes = MetricCollection(
    [MulticlassAccuracy(5), MulticlassF1Score(5), MulticlassAUROC(5), MulticlassConfusionMatrix(5)]
).to(device)
numbers = MetricCollection([MeanSquaredError(), R2Score(), PearsonCorrCoef()]).to(device)
images = MetricCollection([PeakSignalNoiseRatio(data_range=1.0), StructuralSimilarityIndexMeasure(data_range=1.0)]).to(
    device
)
out = []
for _ in range(3):
    logits = torch.randn(16, 5, generator=draw)
    labels = torch.randint(0, 5, (16,), generator=draw)
    out.append(classes(logits.softmax(1).to(device), labels.to(device)))
    numbers.update(logits[:, 0].to(device), (logits[:, 0] + logits[:, 1]).to(device))
    a = torch.rand(2, 1, 16, 16, generator=draw)
    images.update(a.to(device), (a * 0.9).to(device))
out += [m.compute() for m in (classes, numbers, images)]
print(json.dumps([{k: v.flatten().tolist() for k, v in sorted(row.items())} for row in out]))
