"""A classifier of sequences of different lengths, fine-tuned by Hugging Face's Trainer with padding by batch."""

import argparse
import tempfile

import torch
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging


class Sentences(torch.utils.data.Dataset):
    """Sequences of 8 to 40 tokens; the class says whether more of them are even."""

    def __init__(self, n, words):
        generator = torch.Generator().manual_seed(n)
        lengths = torch.randint(8, 41, (n,), generator=generator).tolist()
        self.rows = [torch.randint(1, words, (length,), generator=generator) for length in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return {"input_ids": row, "labels": int((row % 2 == 0).float().mean() > 0.5)}


def collate(items):
    ids = torch.nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
    labels = torch.tensor([item["labels"] for item in items])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=96)
    args = parser.parse_args()
    logging.set_verbosity_error()
    set_seed(0)
    config = DistilBertConfig(
        vocab_size=500, dim=args.width, n_layers=args.layers, n_heads=4, hidden_dim=4 * args.width,
        max_position_embeddings=64, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    model = DistilBertForSequenceClassification(config)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=args.steps, per_device_train_batch_size=8, per_device_eval_batch_size=16,
            learning_rate=5e-4, logging_steps=10, save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model, arguments, data_collator=collate, train_dataset=Sentences(256, 500),
                          eval_dataset=Sentences(48, 500))  # fmt: skip
        trained = trainer.train()
        evaluated = trainer.evaluate()
    print(f"evaluation {evaluated['eval_loss']:.4f} loss {trained.training_loss:.6f}")


if __name__ == "__main__":
    main()
