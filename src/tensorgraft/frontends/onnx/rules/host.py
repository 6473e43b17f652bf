"""Rules for what only the host computes: strings, pictures in files, choices of boxes."""

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


# ---- boxes around objects --------------------------------------------------------------------------------------------


@rule("NonMaxSuppression", host=True)
def non_max_suppression(
    xp: Any, boxes: Any, scores: Any, most: Any = None, iou_threshold: Any = None, score_threshold: Any = None, *,
    center_point_box: int = 0,
) -> Any:  # fmt: skip
    """Choose boxes by their scores, those left out that overlap one chosen before. How many are chosen depends on
    values, so that the host chooses."""
    limit = 0 if most is None else int(np.reshape(most, ()))
    overlap = 0.0 if iou_threshold is None else float(np.reshape(iou_threshold, ()))
    least = -np.inf if score_threshold is None else float(np.reshape(score_threshold, ()))
    chosen = []
    for image in range(boxes.shape[0]):
        corners = _corners(boxes[image].astype(np.float64), center_point_box)
        for label in range(scores.shape[1]):
            row = scores[image, label]
            picked: list[int] = []
            for i in np.argsort(-row, kind="stable"):
                if len(picked) == limit:
                    break
                if row[i] > least and all(_iou(corners[i], corners[j]) <= overlap for j in picked):
                    picked.append(int(i))
            chosen += [(image, label, i) for i in picked]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _corners(boxes: np.ndarray, from_centre: int) -> np.ndarray:
    """Return boxes as (low y, low x, high y, high x)."""
    if from_centre:
        x, y, w, h = boxes.T
        return np.stack([y - h / 2, x - w / 2, y + h / 2, x + w / 2], 1)
    a, b = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(a, b), np.maximum(a, b)], 1)


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    """Return the area of the intersection by that of the union."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    if (sides <= 0).any():
        return 0.0
    common = float(sides.prod())
    return common / (float((a[2:] - a[:2]).prod()) + float((b[2:] - b[:2]).prod()) - common)
