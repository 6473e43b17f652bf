"""GPyTorch: an exact Gaussian process, hyper-parameters by Adam, and predictions."""

import json

import gpytorch
import torch

if torch.cuda.is_available():
    torch.set_default_device("cuda")


class GP(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


x = torch.linspace(0, 1, 20)
y = torch.sin(6 * x) + 0.1 * torch.cos(40 * x)
likelihood = gpytorch.likelihoods.GaussianLikelihood()
model = GP(x, y, likelihood)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
losses = []
for _ in range(8):
    optimizer.zero_grad()
    loss = -mll(model(x), y)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
model.eval(), likelihood.eval()
with torch.no_grad():
    prediction = likelihood(model(torch.linspace(0, 1, 7)))
print(json.dumps({"losses": losses, "mean": prediction.mean.tolist(), "variance": prediction.variance.tolist()}))
