"""Tensor lists: the form of `tf.TensorArray` in graphs, and the residuals of loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tensorgraft.frontends.tensorflow.graph import Shape
from tensorgraft.frontends.tensorflow.rule import EVERY, rule
from tensorgraft.frontends.tensorflow.values import TensorList, is_known, lifted
from tensorgraft.hub import dtypes
from tensorgraft.hub.array import Array
from tensorgraft.hub.backend import Backend


def _element(shape: Any) -> Shape:
    """Return the element shape that an operand says, where -1 is an unknown extent; None where it is not known."""
    if not is_known(shape) or shape.ndim == 0:
        return None
    return tuple(None if n < 0 else int(n) for n in shape)


def _count(xp: Backend, n: Any) -> int:
    return int(n if is_known(n) else xp.to_numpy(n))


@rule("TensorListReserve", either=EVERY, folds=False)
def reserve(xp: Backend, shape: Any, count: Any, *, element_dtype: np.dtype) -> TensorList:
    return TensorList(element_dtype, _element(shape), (None,) * _count(xp, count))


@rule("EmptyTensorList", either=EVERY, folds=False)
def empty(xp: Backend, shape: Any, most: Any, *, element_dtype: np.dtype) -> TensorList:
    return TensorList(element_dtype, _element(shape), ())


@rule("TensorListFromTensor", either=EVERY, folds=False)
def from_tensor(xp: Backend, x: Any, shape: Any, *, element_dtype: np.dtype) -> TensorList:
    if isinstance(x, tuple):  # a variant
        return TensorList(element_dtype, (), x)
    if is_known(x):
        return TensorList(element_dtype, tuple(x.shape[1:]), tuple(x[i] for i in range(x.shape[0])))
    count, *extents = xp.shape(x)
    return TensorList(element_dtype, tuple(extents), None, x, np.asarray(count, np.int32))


@rule("TensorListSetItem", either=EVERY, folds=False)
def set_item(
    xp: Backend, tensor_list: TensorList, index: Any, x: Any, *, resize_if_index_out_of_bounds: bool = False
) -> TensorList:
    return tensor_list.set(xp, index, x, resize_if_index_out_of_bounds)


@rule("TensorListGetItem", either=EVERY, folds=False)
def get_item(xp: Backend, tensor_list: TensorList, index: Any, shape: Any) -> Any:
    return _shaped(tensor_list, shape).get(xp, index)


def _shaped(tensor_list: TensorList, shape: Any) -> TensorList:
    """Return the list with the element shape of an operand, if nothing has been written to it."""
    element_shape_ = _element(shape)
    if (
        tensor_list.items is None
        or element_shape_ is None
        or None in element_shape_
        or any(x is not None for x in tensor_list.items)
    ):
        return tensor_list
    return replace(tensor_list, shape=element_shape_)


@rule("TensorListPushBack", either=EVERY, folds=False)
def push_back(xp: Backend, tensor_list: TensorList, x: Any) -> TensorList:
    return tensor_list.push(xp, x)


@rule("TensorListPopBack", either=EVERY, folds=False)
def pop_back(xp: Backend, tensor_list: TensorList, shape: Any) -> list[Any]:
    return list(_shaped(tensor_list, shape).pop(xp))


@rule("TensorListLength", either=EVERY, folds=False)
def length(xp: Backend, tensor_list: TensorList) -> Any:
    return tensor_list.count()


@rule("TensorListElementShape", either=EVERY, folds=False)
def element_shape(xp: Backend, tensor_list: TensorList, *, shape_type: np.dtype) -> np.ndarray:
    if tensor_list.dtype is None:  # variants
        return np.zeros(0, shape_type)
    if tensor_list.items is None or any(x is not None for x in tensor_list.items):
        return np.asarray(tensor_list.extents(), shape_type)
    if tensor_list.shape is None:
        return np.asarray(-1, shape_type)
    return np.asarray([-1 if n is None else n for n in tensor_list.shape], shape_type)


@rule("TensorListResize", either=EVERY, folds=False)
def resize(xp: Backend, tensor_list: TensorList, count: Any) -> TensorList:
    return tensor_list.resized(xp, _count(xp, count))


@rule("TensorListStack", either=EVERY, folds=False)
def stack(xp: Backend, tensor_list: TensorList, shape: Any, *, num_elements: int = -1) -> Array:
    if tensor_list.dtype is None and tensor_list.items is not None:
        return tensor_list.items
    return _shaped(tensor_list, shape).array(xp)


@rule("TensorListConcatV2", "TensorListConcat", either=EVERY, folds=False)
def concat(
    xp: Backend, tensor_list: TensorList, shape: Any = None, *leading: Any, element_dtype: np.dtype
) -> list[Any]:
    if tensor_list.items is not None:
        rows = [lifted(xp, tensor_list.item(xp, i)) for i in range(len(tensor_list.items))]
    else:
        rows = xp.unstack(tensor_list.array(xp), 0)
    sizes = np.asarray([xp.shape(x)[0] for x in rows], np.int64)
    return [xp.concat(rows, axis=0), sizes]


@rule("TensorListSplit", either=EVERY, folds=False)
def split(xp: Backend, x: Any, shape: Any, lengths: Any, *, element_dtype: np.dtype) -> TensorList:
    sizes = [int(n) for n in (lengths if is_known(lengths) else xp.to_numpy(lengths))]
    return TensorList(element_dtype, _element(shape), tuple(xp.split(lifted(xp, x), sizes, 0)))


@rule("TensorListGather", either=EVERY, folds=False)
def gather(xp: Backend, tensor_list: TensorList, indices: Any, shape: Any) -> Array:
    return xp.take(_shaped(tensor_list, shape).stacked(xp).stack, xp.astype(lifted(xp, indices), dtypes.int64), 0)


@rule("TensorListScatter", either=EVERY, folds=False)
def scatter_v1(xp: Backend, x: Any, indices: Any, shape: Any, *, element_dtype: np.dtype) -> TensorList:
    return scatter(xp, x, indices, shape, np.asarray(-1), element_dtype=element_dtype)


@rule("TensorListConcatLists", either=EVERY, folds=False)
def concat_lists(xp: Backend, a: Any, b: Any, *, element_dtype: np.dtype) -> Any:
    """Concatenate lists, or tensors of lists."""
    if not isinstance(a, TensorList):
        return tuple(concat_lists(xp, x, y, element_dtype=element_dtype) for x, y in zip(a, b, strict=True))
    parts = [x.items if x.items is not None else tuple(xp.unstack(x.array(xp), 0)) for x in (a, b)]
    return replace(a, items=parts[0] + parts[1], stack=None, length=None, common=None)


@rule("TensorListPushBackBatch", either=EVERY, folds=False)
def push_back_batch(xp: Backend, lists: Any, x: Any) -> Any:
    """Push a row of `x` onto each of a tensor of lists."""
    rows = list(x) if is_known(x) else xp.unstack(x, 0)
    return tuple(tensor_list.push(xp, row) for tensor_list, row in zip(lists, rows, strict=True))


@rule("TensorListScatterV2", either=EVERY, folds=False)
def scatter(xp: Backend, x: Any, indices: Any, shape: Any, count: Any, *, element_dtype: np.dtype) -> TensorList:
    indices = indices if is_known(indices) else xp.to_numpy(indices)
    n = max(_count(xp, count), int(indices.max(initial=-1)) + 1)
    return scatter_into(xp, TensorList(element_dtype, _element(shape), (None,) * n), x, indices)


@rule("TensorListScatterIntoExistingList", either=EVERY, folds=False)
def scatter_into(xp: Backend, tensor_list: TensorList, x: Any, indices: Any) -> TensorList:
    if is_known(indices) and tensor_list.items is not None:
        for row, i in zip(xp.unstack(lifted(xp, x), 0), indices, strict=True):
            tensor_list = tensor_list.set(xp, np.asarray(i), row)
        return tensor_list
    tensor_list = replace(tensor_list, shape=tuple(x.shape)[1:]).stacked(xp)
    at = xp.astype(lifted(xp, indices), dtypes.int64)
    return replace(tensor_list, stack=xp.scatter(tensor_list.stack, (at,), lifted(xp, x)))
