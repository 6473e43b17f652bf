"""Transformers: a Llama with a key-value cache, greedy decoding and beam search, reloaded by device_map."""

import json
import tempfile

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
model = LlamaForCausalLM(config).eval()
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, device_map=device)
tokens = torch.randint(3, 96, (2, 7), generator=torch.Generator().manual_seed(0)).to(model.device)
greedy = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=8, do_sample=False)
beams = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=6, do_sample=False, num_beams=3)
print(json.dumps({"greedy": greedy.tolist(), "beams": beams.tolist(), "same device": tokens.device == model.device}))
