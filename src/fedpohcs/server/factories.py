"""Calls registered functions, which may be written by users. An error names the function."""

from typing import Any, NoReturn, TypeVar

from fedpohcs.core.errors import UserError
from fedpohcs.core.registries import Registry

T = TypeVar("T")


def make_registered(registry: Registry, name: str, kind: type[T], *arguments: Any) -> T:
    """The result of the function registered under `name`; it must be of this kind."""
    make, author = registry.find(name), f"{registry.kind} {name!r}"
    try:
        made = make(*arguments)
    except UserError:
        raise
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        takes = "one argument, the settings" if arguments else "no arguments"
        refuse(author, f"cannot be made: {text}", f"Its function takes {takes}.")
    if not isinstance(made, kind):
        refuse(author, f"is made by a function that returns {kind_of(made)}", f"It must return a {kind.__name__}.")
    return made


def refuse(author: str, text: str, remedy: str) -> NoReturn:
    """Say in one line what is wrong with the work of `author`."""
    raise UserError(f"{author} {text}. {remedy}")


def kind_of(value: Any) -> str:
    """The type of a value in words."""
    return f"an object of type {type(value).__name__}"
