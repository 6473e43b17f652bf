"""A recurrent network that reads scikit-learn's digits row by row: an LSTM, clipped gradients, RMSprop."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn


class RNN(nn.Module):
    def __init__(self, inputs, hidden, layers, classes):
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1, :])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--images", type=int, default=1797)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")

    digits = load_digits()
    images = torch.tensor(digits.images[: args.images] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[: args.images])
    held = len(images) // 5
    model = RNN(8, args.hidden, 2, 10).to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        model.train()
        losses = []
        order = torch.randperm(len(images) - held) + held
        for batch in order.split(args.batch_size):  # the last one is smaller
            x, y = images[batch].to(device), labels[batch].to(device)
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        model.eval()
        with torch.no_grad():
            predicted = model(images[:held].to(device)).argmax(1).cpu()
        accuracy = (predicted == labels[:held]).float().mean().item()
        print(f"epoch {epoch}: accuracy {accuracy:.3f} loss {sum(losses) / len(losses):.6f}")


if __name__ == "__main__":
    main()
