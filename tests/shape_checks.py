"""Check the shapes in our annotations while the tests run.

The source imports jaxtyping for type checkers only, so that it is no dependency. This import hook
makes those imports real and wraps each function whose annotations name a shape. Arguments are
compared after the call, so that an error of the function itself comes first. Kernels that numba or
Triton compile are left alone: they are not Python.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from beartype.door import is_bearable
from jaxtyping import jaxtyped

PLAIN_DECORATORS = frozenset(
    ("abstractmethod", "classmethod", "contextmanager", "no_grad", "property", "staticmethod")
)
SHAPED = frozenset(("Bool", "Float", "Inexact", "Int", "Num", "Real", "Shaped"))


class ShapeError(AssertionError):
    """An array does not have the shape or type that its annotation states."""


def checked(shaped: tuple[str, ...], function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that what these names hold ("return" too) must fit their annotations."""

    # torch.compile cannot trace a signature, so the wrapper holds none.
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        if not torch.compiler.is_compiling():
            _compare(shaped, function, args, kwargs, answer)
        return answer

    return wrapper


# By function, asked for at its first call: a class may name itself. Not `functools.cache`, of which
# torch.compile warns.
_annotations: dict[Callable[..., Any], tuple[inspect.Signature, dict[str, Any]]] = {}


def _compare(
    shaped: tuple[str, ...], function: Callable[..., Any], args: Any, kwargs: Any, answer: Any
) -> None:
    if function not in _annotations:
        _annotations[function] = inspect.signature(function), typing.get_type_hints(function)
    signature, hints = _annotations[function]
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    values = {**bound.arguments, "return": answer}
    with jaxtyped("context"):
        for name in shaped:
            if not is_bearable(values[name], hints[name]):
                shape = getattr(values[name], "shape", None)
                raise ShapeError(
                    f"{function.__module__}.{function.__qualname__}: {name} is "
                    f"{type(values[name]).__name__} of shape {shape}, annotated {hints[name]}"
                )


def _decorator_name(decorator: ast.expr) -> str:
    node = decorator.func if isinstance(decorator, ast.Call) else decorator
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _names_a_shape(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        isinstance(node, ast.Name) and node.id in SHAPED for node in ast.walk(annotation)
    )


class _Transformer(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> Any:
        """Keep the body of `if TYPE_CHECKING:`; where there is an `else`, keep that."""
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return node.orelse or node.body
        return self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        shaped = [argument.arg for argument in every if _names_a_shape(argument.annotation)]
        if _names_a_shape(node.returns):
            shaped.append("return")
        if shaped and {_decorator_name(one) for one in node.decorator_list} <= PLAIN_DECORATORS:
            wrap = f"_partial(_checked, {tuple(shaped)!r})"
            node.decorator_list.append(ast.parse(wrap, mode="eval").body)
        return node


IMPORTS = "from functools import partial as _partial; from shape_checks import checked as _checked"


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compile without the cached file, which would be that of the plain source."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def source_to_code(self, data: Any, path: Any, **options: Any) -> CodeType:
        tree = _Transformer().visit(ast.parse(data, path))
        start = 0  # after the docstring and the future imports
        while start < len(tree.body) and (
            isinstance(tree.body[start], ast.Expr)
            or getattr(tree.body[start], "module", None) == "__future__"
        ):
            start += 1
        tree.body[start:start] = ast.parse(IMPORTS).body
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] != "sharpmax":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


def install() -> None:
    """Check the shapes of all modules of sharpmax that are imported from now on."""
    if "sharpmax" in sys.modules:
        raise RuntimeError("sharpmax was imported before its shapes could be checked")
    sys.meta_path.insert(0, _Finder())
