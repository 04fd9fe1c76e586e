"""Networks in plain PyTorch (`networks`), and the client axis for them (`batched`)."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from .batched import Batched as Batched
from .networks import CNN, MLP, Imported, LeNet5, Logistic
from .networks import build as build

NETWORKS = (Logistic, MLP, LeNet5, CNN)


def _tag(value: Any) -> str:
    kind = value if isinstance(value, str) else value.get("kind") if isinstance(value, dict) else value.kind
    return "imported" if isinstance(kind, str) and ":" in kind else str(kind)


Model = Annotated[
    Annotated[Logistic, Tag("logistic")]
    | Annotated[MLP, Tag("mlp")]
    | Annotated[LeNet5, Tag("lenet5")]
    | Annotated[CNN, Tag("cnn")]
    | Annotated[Imported, Tag("imported")],
    Discriminator(_tag),
]
