"""Train a convolutional classifier on scikit-learn's handwritten digits.

python digits.py --steps 250
"""

import argparse
import json
import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

HIDDEN = 64


class Dropout(nn.Dropout):
    """Dropout that can be given its mask, so that a run can be repeated on another device."""

    def forward(self, x, keep=None):
        if keep is None or not self.training:
            return super().forward(x)
        return x * keep / (1 - self.p)


class Net(nn.Module):
    def __init__(self, p=0.25):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.GELU(),
            nn.AvgPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.GELU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.hidden = nn.Linear(32 * 2 * 2, HIDDEN)
        self.dropout = Dropout(p)
        self.classify = nn.Linear(HIDDEN, 10)

    def forward(self, images, keep=None):
        x = F.gelu(self.hidden(self.features(images)))
        return self.classify(self.dropout(x, keep))


def load(batch_size, generator):
    """Batches to train on, and the images and labels that are held out."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=digits.target)
    dataset = TensorDataset(images[train], labels[train])
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=True, drop_last=True, generator=generator)
    return loader, images[test], labels[test]


def forever(loader):
    while True:
        yield from loader


def training(model, lr, steps):
    """The learning-rate schedule, and the function that makes one step of training."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - step / steps, 0.0))

    def train_step(images, labels, keep):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images, keep), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return scheduler, train_step


@torch.no_grad()
def accuracy(model, images, labels):
    model.eval()
    correct = (model(images).argmax(1) == labels).float().mean().item()
    model.train()
    return correct


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true", help="compile the training step")
    parser.add_argument("--save-curve", metavar="FILE", help="write losses, accuracy and step times as JSON")
    args = parser.parse_args()

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    loader, test_images, test_labels = load(args.batch_size, generator)
    test_images, test_labels = test_images.to(device), test_labels.to(device)

    model = Net().to(device)
    scheduler, train_step = training(model, args.lr, args.steps)
    if args.compile:
        train_step = torch.compile(train_step)

    losses, times = [], []
    for step, (images, labels) in enumerate(forever(loader)):
        if step == args.steps:
            break
        start = time.perf_counter()
        # The masks of dropout come with the batch, from the CPU's generator.
        keep = torch.bernoulli(torch.full((len(images), HIDDEN), 1 - model.dropout.p), generator=generator)
        loss = train_step(images.to(device), labels.to(device), keep.to(device)).item()
        scheduler.step()
        times.append(time.perf_counter() - start)
        losses.append(loss)
        if step % 25 == 0 or step == args.steps - 1:
            print(f"step {step:4d}  loss {loss:.4f}", flush=True)

    held_out = accuracy(model, test_images, test_labels)
    print(f"held-out accuracy {held_out:.4f} on {device}")
    if args.save_curve:
        with open(args.save_curve, "w") as file:
            json.dump({"losses": losses, "accuracy": held_out, "samples": len(test_labels), "times": times}, file)


if __name__ == "__main__":
    main()
