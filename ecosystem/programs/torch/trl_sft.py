"""TRL: supervised fine-tuning of a small GPT-2 on token ids."""

import json
import sys
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

words = ["[PAD]", "[UNK]", "[EOS]", "the", "a", "cat", "dog", "sees", "likes", "big", "small", "house", "tree", "and"]
tokenizer = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]")
texts = [f"the {a} cat {v} a {b} dog" for a in ("big", "small") for v in ("sees", "likes") for b in ("big", "small")]
torch.manual_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=32, n_layer=2, n_head=2, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
    )
)
with tempfile.TemporaryDirectory() as folder:
    sys.stdout, out = sys.stderr, sys.stdout
    settings = SFTConfig(
        folder,
        per_device_train_batch_size=4,
        max_steps=6,
        logging_steps=1,
        learning_rate=1e-2,
        report_to=[],
        disable_tqdm=True,
        bf16=False,
        save_steps=3,
        max_length=16,
        seed=0,
    )
    trainer = SFTTrainer(
        model, args=settings, train_dataset=Dataset.from_dict({"text": texts}), processing_class=tokenizer
    )
    trainer.train()
    sys.stdout = out
print(json.dumps({"losses": [row["loss"] for row in trainer.state.log_history if "loss" in row]}))
