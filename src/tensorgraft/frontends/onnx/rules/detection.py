"""Rules for boxes around objects."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorgraft.frontends.onnx.rule import rule


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
