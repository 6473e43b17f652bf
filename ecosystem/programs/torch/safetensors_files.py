"""safetensors: a model's weights saved from the device, and loaded straight onto it."""

import json
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(device).eval()
x = torch.randn(2, 5, 16).to(device)
other = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).to(device).eval()
with tempfile.TemporaryDirectory() as folder, torch.no_grad():
    save_file(model.state_dict(), f"{folder}/a.safetensors", metadata={"format": "pt"})
    other.load_state_dict(load_file(f"{folder}/a.safetensors", device=device))
    loaded = other(x)
    with safe_open(f"{folder}/a.safetensors", "pt", device=device) as f:
        part = f.get_slice("linear1.weight")[2:5, ::1]
        names = sorted(f.keys())
    save_model(model, f"{folder}/b.safetensors")
    load_model(other, f"{folder}/b.safetensors", device=device)
    again = other(x)
    want = model(x)
print(
    json.dumps(
        {
            "want": want.flatten().tolist(),
            "loaded": (loaded - want).abs().max().item(),
            "again": (again - want).abs().max().item(),
            "part": part.flatten().tolist(),
            "names": len(names),
            "device": part.device == want.device,
        }
    )
)
