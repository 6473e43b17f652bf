"""Lightning: fit with validation, a checkpoint callback, and a second fit that goes on from the checkpoint."""

import json
import sys
import tempfile
import warnings

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn

warnings.filterwarnings("ignore", module="lightning")


class Digits(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
        self.losses = []

    def training_step(self, batch, _):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]


digits = load_digits()
data = torch.utils.data.TensorDataset(
    torch.tensor(digits.images[:256], dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target[:256])
)
loader = torch.utils.data.DataLoader(data, batch_size=64)


def fit(folder, epochs, **more):
    lightning.seed_everything(0, verbose=False)
    model = Digits()
    keep = ModelCheckpoint(folder, monitor="val_loss", save_last=True)
    trainer = lightning.Trainer(
        max_epochs=epochs, callbacks=[keep], logger=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(model, loader, loader, **more)
    return model.losses, float(trainer.callback_metrics["val_loss"])


with tempfile.TemporaryDirectory() as folder:
    sys.stdout, out = sys.stderr, sys.stdout
    first = fit(folder, 2)
    resumed = fit(folder, 3, ckpt_path=f"{folder}/last.ckpt")
    sys.stdout = out
print(json.dumps({"first": first, "resumed": resumed}))
