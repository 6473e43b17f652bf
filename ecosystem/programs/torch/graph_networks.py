"""torch_geometric: graph networks on a CSR adjacency, trained by Adam, and their scores of the nodes."""

import json
import warnings

import torch
from torch import nn
from torch_geometric.nn import GCNConv, GINConv, GraphConv, SAGEConv

warnings.filterwarnings("ignore", "Sparse")
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
nodes, features, classes = 60, 8, 4
adjacency = (torch.rand(nodes, nodes) < 0.08).float()
adjacency = ((adjacency + adjacency.T) > 0).float().to_sparse_csr().to(device)
x, y = torch.randn(nodes, features).to(device), torch.randint(0, classes, (nodes,)).to(device)


class Net(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x, adjacency):
        return self.second(self.first(x, adjacency).relu(), adjacency).log_softmax(-1)


def train(net, steps=5):
    net = net.to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(net(x, adjacency), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses + net(x, adjacency)[:3].flatten().tolist()


nets = {
    "gcn": Net(GCNConv(features, 16), GCNConv(16, classes)),
    "gcn cached": Net(GCNConv(features, 16, cached=True), GCNConv(16, classes, cached=True)),
    "sage": Net(SAGEConv(features, 16), SAGEConv(16, classes)),
    "graph": Net(GraphConv(features, 16), GraphConv(16, classes)),
    "gin": Net(GINConv(nn.Linear(features, 16)), GINConv(nn.Linear(16, classes))),
}
print(json.dumps({name: train(net) for name, net in nets.items()}))
