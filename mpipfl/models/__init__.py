"""Networks in plain PyTorch (`networks`), and the client axis for them (`batched`)."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from .batched import Batched as Batched
from .language import LSTM, CharLSTM, Text
from .networks import CNN, CNN6, MLP, Imported, LeNet5, Location, Logistic, ResNet, WakeWord
from .networks import build as build

NETWORKS = (Logistic, MLP, LeNet5, CNN, CNN6, ResNet, WakeWord, Text, LSTM, CharLSTM, Location)


def _tag(value: Any) -> str:
    if not isinstance(value, str):
        value = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "imported" if isinstance(value, str) and ":" in value else str(value)


Model = Annotated[
    Annotated[Logistic, Tag("logistic")]
    | Annotated[MLP, Tag("mlp")]
    | Annotated[LeNet5, Tag("lenet5")]
    | Annotated[CNN, Tag("cnn")]
    | Annotated[CNN6, Tag("cnn6")]
    | Annotated[ResNet, Tag("resnet")]
    | Annotated[WakeWord, Tag("wakeword")]
    | Annotated[Text, Tag("text")]
    | Annotated[LSTM, Tag("lstm")]
    | Annotated[CharLSTM, Tag("char_lstm")]
    | Annotated[Location, Tag("location")]
    | Annotated[Imported, Tag("imported")],
    Discriminator(_tag),
]
