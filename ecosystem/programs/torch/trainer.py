"""Hugging Face Trainer: fine-tune a small BERT with batches of varying lengths, checkpoints, and a resumed run."""

import json
import sys
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(torch.utils.data.Dataset):
    """Tokens whose first one says the class; lengths vary."""

    def __init__(self, n, generator):
        lengths = torch.randint(4, 12, (n,), generator=generator).tolist()
        self.rows = [torch.randint(5, 64, (k,), generator=generator) for k in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": int(row[0] > 34)}


class Pad:
    def __call__(self, rows):
        pad = torch.nn.utils.rnn.pad_sequence
        batch = {k: pad([r[k] for r in rows], batch_first=True) for k in ("input_ids", "attention_mask")}
        return {**batch, "labels": torch.tensor([r["labels"] for r in rows])}


def model():
    torch.manual_seed(0)
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def train(folder, **more):
    settings = TrainingArguments(
        folder,
        per_device_train_batch_size=8,
        max_steps=8,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
        seed=0,
        eval_strategy="steps",
        eval_steps=4,
    )
    sentences = Sentences(64, torch.Generator().manual_seed(0))
    trainer = Trainer(
        model=model(), args=settings, train_dataset=sentences, eval_dataset=sentences, data_collator=Pad()
    )
    trainer.train(**more)
    return [row[k] for row in trainer.state.log_history for k in ("loss", "eval_loss") if k in row]


with tempfile.TemporaryDirectory() as folder:
    sys.stdout, out = sys.stderr, sys.stdout
    losses = train(folder)
    resumed = train(folder, resume_from_checkpoint=f"{folder}/checkpoint-4")
    sys.stdout = out
print(json.dumps({"losses": losses, "resumed": resumed}))
