"""Rules for what only the host computes: strings, pictures in files, random choices of positions."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import rule
from tensorgraft.importing import required


@rule("ImageDecoder", host=True)
def image_decoder(xp: Any, encoded: Any, *, pixel_format: str = "RGB") -> Any:
    """Return the picture in the bytes of a file, uint8 (height, width, channels)."""
    required("PIL", by="ImageDecoder of an ONNX model")
    from PIL import Image

    try:
        picture = Image.open(io.BytesIO(np.asarray(encoded, np.uint8).tobytes()))
        colours = np.asarray(picture.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"the bytes are those of no picture that can be read: {error}") from None
    if pixel_format == "Grayscale":
        return colours[..., None]
    return colours[..., ::-1].copy() if pixel_format == "BGR" else colours


@rule("StringConcat", host=True)
def string_concat(xp: Any, x: Any, y: Any) -> Any:
    return np.asarray(np.add(x, y), object)


@rule("StringSplit", host=True)
def string_split(xp: Any, x: Any, *, delimiter: str | None = None, maxsplit: int | None = None) -> Any:
    parts = [str(s).split(delimiter or None, -1 if maxsplit is None else maxsplit) for s in x.ravel()]
    counts = [len(p) for p in parts]
    most = max(counts, default=0)
    rows = np.empty((len(parts), most), object)
    for i, p in enumerate(parts):
        rows[i] = [*p, *[""] * (most - len(p))]
    return [rows.reshape(*x.shape, most), np.asarray(counts, np.int64).reshape(x.shape)]


@rule("StringNormalizer", host=True)
def string_normalizer(
    xp: Any, x: Any, *, case_change_action: str = "NONE", is_case_sensitive: int = 0, locale: str = "",
    stopwords: tuple[str, ...] = (),
) -> Any:  # fmt: skip
    change = {"LOWER": str.lower, "UPPER": str.upper}.get(case_change_action, str)
    stops = {s if is_case_sensitive else s.lower() for s in stopwords}
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    kept = [[change(s) for s in row if (s if is_case_sensitive else s.lower()) not in stops] for row in rows]
    kept = [row or [""] for row in kept]
    return np.array(kept, object) if x.ndim > 1 else np.array(kept[0], object)


@rule("RegexFullMatch", host=True)
def regex_full_match(xp: Any, x: Any, *, pattern: str = "") -> Any:
    compiled = re.compile(pattern)
    return np.array([compiled.fullmatch(s) is not None for s in x.ravel()], bool).reshape(x.shape)


@rule("TfIdfVectorizer", host=True)
def tf_idf_vectorizer(
    xp: Any, x: Any, *, max_gram_length: int, max_skip_count: int, min_gram_length: int, mode: str,
    ngram_counts: tuple[int, ...], ngram_indexes: tuple[int, ...], pool_int64s: tuple[int, ...] = (),
    pool_strings: tuple[str, ...] = (), weights: tuple[float, ...] = (),
) -> Any:  # fmt: skip
    pool: Any = pool_int64s or pool_strings
    grams: dict[tuple[Any, ...], int] = {}
    for length, start in enumerate(ngram_counts, 1):
        end = ngram_counts[length] if length < len(ngram_counts) else len(pool)
        for at in range(start, end, length):
            grams[tuple(pool[at : at + length])] = len(grams)
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    size = max(ngram_indexes) + 1
    out = np.zeros((len(rows), size), np.float32)
    for row, found in zip(rows, out, strict=True):
        for gram in _grams(row.tolist(), min_gram_length, max_gram_length, max_skip_count):
            number = grams.get(gram)
            if number is not None:
                found[ngram_indexes[number]] += 1
    if mode in ("IDF", "TFIDF"):
        factors = np.ones(size, np.float32)
        factors[list(ngram_indexes)] = weights or 1
        out = (np.minimum(out, 1) if mode == "IDF" else out) * factors
    return out[0] if x.ndim == 1 else out


def _grams(row: list[Any], least: int, most: int, skips: int) -> list[tuple[Any, ...]]:
    found = []
    for length in range(least, most + 1):
        for skip in range(1, (skips if length > 1 else 0) + 2):
            found += [tuple(row[i : i + length * skip : skip]) for i in range(len(row) - (length - 1) * skip)]
    return found
