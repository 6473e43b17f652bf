"""All pairs of networks that other people wrote; `packages` of a pair says what it needs beside the `dev` group."""

from __future__ import annotations

from ecosystem.port import functional, language, recurrent, vision
from ecosystem.port.language import BERT_BASE as BERT_BASE

PAIRS = [*language.PAIRS, *vision.PAIRS, *functional.PAIRS, *recurrent.PAIRS]
