"""`Module`: dataclasses that are pytrees, for models (after Equinox: Kidger and Garcia 2021, arXiv 2111.00254).

Built on `optree`, and on the arrays of any framework (`tensorgraft.arrays`); nothing of the core imports it, nor the
filtered transforms that are built on it.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import Any, dataclass_transform

import optree

from tensorgraft.arrays import describe, is_array
from tensorgraft.transforms import abstract, registration
from tensorgraft.transforms.pformat import tree_pformat
from tensorgraft.transforms.trees import tree_equal

_under_way: dict[int, Any] = {}  # modules whose __init__ runs, by id


def field(*, static: bool = False, converter: Callable[[Any], Any] | None = None, **kwargs: Any) -> Any:
    """Declare a field of a `Module`, with the arguments of `dataclasses.field` and

    Arguments:
        static: not a child of the pytree but a part of its structure: a size, a name, a flag; no arrays. For a value
            that is not equal (`==`), programs are compiled again.
        converter: a function that is applied to the value after `__init__`.

    Raises TypeError and ValueError as `dataclasses.field` does.
    """
    metadata = {**kwargs.pop("metadata", {}), "static": static}
    if converter is not None:
        metadata["converter"] = converter
    return dataclasses.field(metadata=metadata, **kwargs)


class _Static:
    """The static values of a module, as the part of a pytree's structure that they are. 1 is not True, nor 1.0."""

    __slots__ = ("names", "values")

    def __init__(self, names: tuple[str, ...], values: dict[str, Any]) -> None:
        self.names, self.values = names, values

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Static)
            and self.names == other.names
            and self.values.keys() == other.values.keys()
            and all(v is (w := other.values[n]) or (type(v) is type(w) and v == w) for n, v in self.values.items())
        )

    def __hash__(self) -> int:
        return hash((self.names, tuple(self.values)))

    def __repr__(self) -> str:
        return ", ".join([*self.names, *(f"{name}={value!r}" for name, value in self.values.items())])


class _Method:
    """A method whose bound form is a pytree, so that it can be transformed like the module itself."""

    def __init__(self, fn: types.FunctionType) -> None:
        self.__wrapped__ = fn
        functools.update_wrapper(self, fn)  # type: ignore[arg-type]

    @property
    def __isabstractmethod__(self) -> bool:
        return getattr(self.__wrapped__, "__isabstractmethod__", False)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return (
            self.__wrapped__
            if instance is None
            else new_instance(BoundMethod, __func__=self.__wrapped__, __self__=instance)
        )


def _is_method(name: str, namespace: dict[str, Any]) -> bool:
    if name == "__call__":
        return "__self__" not in namespace.get("__annotations__", {})  # but for bound methods themselves
    return not (name.startswith("__") and name.endswith("__"))


@dataclass_transform(field_specifiers=(dataclasses.field, field))
class _ModuleMeta(abc.ABCMeta):
    _lacks: dict[str, type]
    _fields: tuple[dataclasses.Field, ...]
    _names: frozenset[str]
    _dynamic: tuple[str, ...]
    _static: tuple[str, ...]
    _own_init: bool  # a dataclass has written __init__

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        wrapped = {
            key: _Method(v) if isinstance(v, types.FunctionType) and _is_method(key, namespace) else v
            for key, v in namespace.items()
        }
        cls: Any = super().__new__(mcs, name, bases, wrapped, **kwargs)
        cls._lacks = abstract.collect(cls)
        has_init = "__init__" in namespace
        base_init = next((b for b in cls.__mro__[1:] if "__init__" in b.__dict__ and b is not object), None)
        inherits = base_init is not None and not (isinstance(base_init, _ModuleMeta) and base_init._own_init)
        cls._own_init = not has_init and not inherits
        if not cls._own_init and "__post_init__" in namespace:
            raise TypeError(
                f"{name} has both __init__ and __post_init__, but only a generated __init__ calls __post_init__:"
                " use __check_init__, which is called after either"
            )
        cls = dataclasses.dataclass(eq=False, repr=False, init=cls._own_init)(cls)
        cls._fields = dataclasses.fields(cls)
        cls._names = frozenset(f.name for f in cls._fields)
        cls._static = tuple(f.name for f in cls._fields if f.metadata.get("static", False))
        cls._dynamic = tuple(f.name for f in cls._fields if f.name not in cls._static)
        registration.register(cls, *_pytree_functions(cls))
        return cls

    def __call__(cls, *args, **kwargs):  # unannotated: type checkers then read the class's `__init__`
        registration.catch_up()
        if cls._lacks:
            names = ", ".join(sorted(cls._lacks))
            raise TypeError(f"can't instantiate abstract class {cls.__qualname__}: it lacks {names}")
        maker: Any = cls  # for type checkers
        self: Any = maker.__new__(maker, *args, **kwargs)
        _under_way[id(self)] = self
        try:
            self.__init__(*args, **kwargs)
        finally:
            del _under_way[id(self)]
        for f in cls._fields:
            try:
                value = getattr(self, f.name)
            except AttributeError:
                raise TypeError(f"{cls.__qualname__}.__init__ has not set the field {f.name!r}") from None
            if (converter := f.metadata.get("converter")) is not None:
                value = converter(value)
            self.__dict__[f.name] = value
            _check(cls, f, value)
        for base in cls.__mro__:
            if "__check_init__" in base.__dict__:
                base.__dict__["__check_init__"](self)
        return self

    @property
    def __signature__(cls) -> inspect.Signature:
        maker: Any = cls
        signature = inspect.signature(maker.__init__)
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _check(cls: type, f: dataclasses.Field, value: Any) -> None:
    if f.metadata.get("static", False):
        arrays = [x for x in optree.tree_leaves(value) if is_array(x)]
        if arrays:
            raise TypeError(
                f"{cls.__qualname__}.{f.name} is a static field, but got an array, {describe(arrays[0])}: static"
                " values are part of a compiled program. Remove static=True."
            )
    elif callable(value) and not isinstance(value, Module):
        inner = getattr(value, "__wrapped__", None)
        if inner is not None and not is_array(value) and any(map(is_array, optree.tree_leaves(inner))):
            raise TypeError(
                f"{cls.__qualname__}.{f.name} got a function that wraps a {type(inner).__qualname__}, whose arrays"
                " no transform would see. Wrap it where it is called, or with filter_jit, filter_vmap and the"
                " like, which return pytrees."
            )


def _pytree_functions(cls: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    dynamic, static = cls._dynamic, cls._static

    def flatten(x: Any) -> tuple[tuple[Any, ...], _Static, tuple[str, ...]]:
        fields = x.__dict__
        names = dynamic if all(name in fields for name in dynamic) else tuple(n for n in dynamic if n in fields)
        return tuple(fields[n] for n in names), _Static(names, {n: fields[n] for n in static if n in fields}), names

    def unflatten(structure: _Static, children: Sequence[Any]) -> Any:
        x = object.__new__(cls)
        x.__dict__.update(zip(structure.names, children, strict=True))
        x.__dict__.update(structure.values)
        return x

    return flatten, unflatten


def new_instance(cls: Any, **values: Any) -> Any:
    """Return a module of a class with these fields, without its `__init__`."""
    x = object.__new__(cls)
    x.__dict__.update(values)
    return x


class Module(metaclass=_ModuleMeta):
    """The base class of models: a dataclass and a pytree, with methods.

        class Affine(tg.Module):
            weight: Array
            bias: Array
            size: int = tg.transforms.field(static=True)

            def __call__(self, x):
                return self.weight @ x + self.bias

    Fields are annotated in the class; those that are not `static` are the children of the pytree. `__init__` is that of
    a dataclass unless the class defines one (subclasses inherit it); it sets every field, and nothing else. After it
    converters and every `__check_init__` of the class and its bases are called, and the module is frozen: `tree_at`
    makes changed copies. Bound methods are pytrees too.

    Classes are registered as pytrees with `optree`; with `jax.tree_util` and `torch.utils._pytree` if these are
    imported when a class is defined or a module is created. They are abstract base classes: `abc.abstractmethod`,
    `AbstractVar` and `AbstractClassVar` declare what subclasses must define.

    Raises TypeError for a field that was not set, a static one that was given arrays, and an abstract class;
    `dataclasses.FrozenInstanceError` for a write after `__init__`; AttributeError for a write to an attribute that is
    no field.

    >>> import tensorgraft as tg, tensorgraft.array_api as xp
    >>> class Scale(tg.Module):
    ...     factor: xp.Array
    ...     def __call__(self, x):
    ...         return self.factor * x
    >>> model = Scale(xp.asarray(2.0, device="numpy"))
    >>> tg.grad(lambda model: model(model.factor))(model).factor.tolist()
    4.0
    """

    def __setattr__(self, name: str, value: Any) -> None:
        cls: Any = type(self)
        if id(self) not in _under_way:
            raise dataclasses.FrozenInstanceError(
                f"cannot assign to {cls.__qualname__}.{name}: a Module cannot change after __init__. Use tree_at"
                " to make a changed copy."
            )
        if name not in cls._names:
            raise AttributeError(
                f"{cls.__qualname__} has no field {name!r}: annotate it in the class ({name}: ...). It has"
                f" {', '.join(f.name for f in cls._fields) or 'none'}."
            )
        if isinstance(value, BoundMethod) and value.__self__ is self:
            raise ValueError(
                f"{cls.__qualname__}.{name} got a method of the module itself, which would make the module a part"
                " of itself: make it a property."
            )
        self.__dict__[name] = value

    def __delattr__(self, name: str) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot delete {type(self).__qualname__}.{name}")

    def __eq__(self, other: object) -> Any:
        return tree_equal(self, other)

    def __hash__(self) -> int:
        return hash((type(self), *(self.__dict__.get(f.name) for f in type(self)._fields)))

    def __repr__(self) -> str:
        return tree_pformat(self)


class BoundMethod(Module):
    """A method of a module and the module."""

    __func__: Callable[..., Any] = field(static=True)
    __self__: Module = field()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__func__(self.__self__, *args, **kwargs)

    def __shown__(self) -> tuple[str, list[tuple[str, Any]], str]:
        """See `pformat`."""
        return f"<bound method {self.__func__.__qualname__} of ", [("", self.__self__)], ">"

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.__func__.__get__(self.__self__, type(self.__self__))  # the method of the function, with its module


class Partial(Module):
    """`functools.partial` as a pytree: the function and its arguments are children.

    Positional arguments of a call follow those given here.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    keywords: dict[str, Any]

    def __init__(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> None:
        self.func, self.args, self.keywords = func, args, kwargs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.func(*self.args, *args, **{**self.keywords, **kwargs})


def tree_inference(tree: Any, value: bool) -> Any:
    """Return a copy of a pytree in which the field `inference` of every module has this value.

    Modules that behave differently in training, such as `nn.Dropout`, have this field.
    """

    def changed(x: Any) -> Any:
        if not isinstance(x, Module):
            return x
        fields = {n: tree_inference(v, value) for n, v in x.__dict__.items()}
        if "inference" in fields and "inference" in type(x)._names:
            fields["inference"] = value
        return new_instance(type(x), **fields)

    return optree.tree_map(changed, tree, is_leaf=lambda x: isinstance(x, Module))
