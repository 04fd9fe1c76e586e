"""How clients' data differ beyond their labels' frequencies: groups of clients see turned images or exchanged labels.

A shift is its section of the configuration. Groups are contiguous blocks of clients (client c of M is in group
c * groups // M), so that a table of clients can be read group by group.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from mpipfl.data.keyed import generator
from mpipfl.errors import DataError
from mpipfl.section import Count, Number, Section


class Shift(Section):
    """What all shifts can do; by itself it changes nothing."""

    def group(self, clients: int) -> np.ndarray:
        """(clients,) int64: each client's group."""
        return np.zeros(clients, np.int64)

    def degrees(self, client_group: int) -> int:
        """How far a group's images are turned, counter-clockwise."""
        return 0

    def permutation(self, client_group: int, classes: int, seed: int) -> np.ndarray | None:
        """(classes,) the label that stands for each class in a group, or None."""
        return None

    def apply_images(self, x: np.ndarray, client_group: int) -> np.ndarray:
        """Images (n, C, H, W) as this group sees them."""
        return turned(x, self.degrees(client_group))

    def apply_labels(self, y: np.ndarray, client_group: int, classes: int, seed: int) -> np.ndarray:
        """Labels as this group calls them."""
        permutation = self.permutation(client_group, classes, seed)
        return y if permutation is None else permutation[y]


class NoShift(Shift):
    """All clients see the data as it is."""

    kind: Literal["none"] = "none"


class Rotate(Shift):
    """Group g sees its images turned by g quarter turns."""

    kind: Literal["rotate"] = "rotate"
    groups: Annotated[int, Number] = Field(default=4, ge=1, le=4, description="Groups of clients: 1 to 4.")

    def group(self, clients: int) -> np.ndarray:
        return blocks(clients, self.groups)

    def degrees(self, client_group: int) -> int:
        return 90 * client_group


class PermuteLabels(Shift):
    """Each group has its own random names for the classes."""

    kind: Literal["permute_labels"] = "permute_labels"
    groups: Count = Field(default=4, description="Groups of clients.")

    def group(self, clients: int) -> np.ndarray:
        return blocks(clients, self.groups)

    def permutation(self, client_group: int, classes: int, seed: int) -> np.ndarray | None:
        return generator(seed, "shift: permute_labels", client_group).permutation(classes).astype(np.int64)


def blocks(clients: int, groups: int) -> np.ndarray:
    """Contiguous groups whose sizes differ by one at most."""
    if groups > clients:
        raise DataError(
            f"data.shift.groups is {groups}, but there are only {clients} clients; take at most {clients} groups."
        )
    return np.arange(clients, dtype=np.int64) * groups // clients


def turned(x: np.ndarray, degrees: int) -> np.ndarray:
    """Square images (n, C, H, W) turned counter-clockwise by a multiple of 90 degrees, to the pixel."""
    check_square(x.shape[1:], degrees)
    return np.rot90(x, degrees // 90, axes=(-2, -1)) if degrees % 360 else x


def check_square(shape: tuple[int, ...], degrees: int) -> None:
    """Only square images keep their shape when they are turned."""
    if degrees % 360 and (len(shape) < 2 or shape[-1] != shape[-2]):
        raise DataError(f"data.shift=rotate needs square images; the samples of this source have shape {shape}.")


AnyShift = Annotated[
    NoShift | Rotate | PermuteLabels,
    Field(discriminator="kind", description="How groups of clients see the data differently."),
]
