"""An LSTM language model (Zaremba et al. 2014) as plain PyTorch."""

import torch
from torch import nn


class LSTMModel(nn.Module):
    """Token ids to the logits of the next token, and the state after the last one."""

    def __init__(self, vocabulary=256, width=64, hidden=96, layers=2, dropout=0.2) -> None:
        super().__init__()
        self.layers, self.hidden = layers, hidden
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, hidden, layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(hidden, vocabulary)
        self.init_weights()

    def init_weights(self) -> None:
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def init_state(self, batch: int):
        """Zeros, for the start of a text."""
        weight = self.decoder.weight
        zeros = weight.new_zeros(self.layers, batch, self.hidden)
        return zeros, zeros.clone()

    def forward(self, ids, state):
        embedded = self.drop(self.encoder(ids))
        output, state = self.rnn(embedded, state)
        return self.decoder(self.drop(output)), state


def example_inputs():
    state = torch.randn(2, 3, 96), torch.randn(2, 3, 96)
    return torch.randint(0, 256, (3, 16)), state
