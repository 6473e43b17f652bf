"""PEFT: train LoRA adapters of a small GPT-2, save them, load them into a fresh base model, merge them."""

import json
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def base():
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=96, n_positions=32, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
    )
    return GPT2LMHeadModel(config)


model = get_peft_model(base(), LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True))
model.to(device)
tokens = torch.randint(0, 96, (4, 16), generator=torch.Generator().manual_seed(0)).to(device)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
losses = []
for _ in range(6):
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    again = PeftModel.from_pretrained(base().to(device), folder)
with torch.no_grad():
    trained, loaded = (m(input_ids=tokens, labels=tokens).loss.item() for m in (model, again))
    merged = again.merge_and_unload()(input_ids=tokens, labels=tokens).loss.item()
print(json.dumps({"losses": losses, "trained": trained, "loaded": loaded, "merged": merged}))
