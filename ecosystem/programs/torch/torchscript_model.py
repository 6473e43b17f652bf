"""TorchScript: a scripted and a traced model, saved, loaded onto the device, run, trained and saved again."""

import io
import json

import torch
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, flip: bool = False) -> torch.Tensor:
        if flip:
            x = x.flip(-1)
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def reload(module):
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file, map_location=device)


torch.manual_seed(0)
x = torch.randn(4, 3, 8, 8)
target = torch.tensor([0, 1, 2, 3])
scripted = reload(torch.jit.script(Net()))
traced = reload(torch.jit.trace(Net().eval(), x))
moved = torch.jit.script(Net().eval()).to(device)
optimizer = torch.optim.SGD(scripted.parameters(), lr=0.1, momentum=0.9)
losses = []
for step in range(5):
    loss = nn.functional.cross_entropy(scripted(x.to(device), flip=step % 2 == 1), target.to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
scripted.eval()
frozen = torch.jit.freeze(scripted)
with torch.no_grad():
    outs = {
        n: m(x.to(device)).flatten().tolist() for n, m in (("traced", traced), ("moved", moved), ("frozen", frozen))
    }
print(json.dumps({"losses": losses, **outs}))
