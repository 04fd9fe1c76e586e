"""The base of every part of a configuration: a frozen, fully checked, documented set of parameters.

A partition, a model or a method *is* its section: the class that declares the parameters, with their defaults and
their meaning, also does the work. `kind` names it in YAML, its docstring's first line describes it in `--list`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic.fields import FieldInfo


def _a_number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("is a number, not true or false")
    return value


Number = BeforeValidator(_a_number)
Positive = Annotated[float, Number, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Number, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Number, Field(gt=0, le=1)]
Count = Annotated[int, Number, Field(ge=1)]
Natural = Annotated[int, Number, Field(ge=0)]


class Section(BaseModel):
    """A frozen set of checked parameters; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _a_word_is_a_kind(cls, value: Any) -> Any:
        """`model: lenet5` is short for `model: {kind: lenet5}`."""
        return {"kind": value} if isinstance(value, str) and "kind" in cls.model_fields else value

    @classmethod
    def entries(cls) -> dict[str, FieldInfo]:
        """The fields by the names they have in YAML."""
        return {field.alias or name: field for name, field in cls.model_fields.items()}

    @classmethod
    def line(cls) -> str:
        """The docstring's first line."""
        return (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """A tree of settings by `key.path`."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {k: v for key, value in tree.items() for k, v in flat(value, f"{path}.{key}".lstrip(".")).items()}


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        *sections, key = path.split(".")
        inside = tree
        for section in sections:
            inside = inside.setdefault(section, {})
        inside[key] = value
    return tree
