"""Tables of counts, clients x classes: fitted to wished rows and given columns, made whole, and dealt out.

Who holds which class is settled before; a table says how many samples of each.
"""

from __future__ import annotations

import numpy as np

FITTING_STEPS = 200


def balanced(clients: int, choices: int, k: int, draw: np.random.Generator) -> np.ndarray:
    """(clients, choices) bool: each client takes the k with the fewest holders, ties at random."""
    holders = np.zeros(choices)
    held = np.zeros((clients, choices), bool)
    for row in held:
        row[np.argsort(holders + draw.random(choices) / 2)[:k]] = True
        holders += row
    return held[draw.permutation(clients)]


def fitted(held: np.ndarray, targets: np.ndarray, stock: np.ndarray, least: int = 1) -> np.ndarray:
    """(clients, classes) counts: at least `least` where held, columns sum to stock, rows near targets.

    `held` says who holds what: bool, or weights that say how much more of one class than of another. Rows and columns
    are scaled in turn (iterative proportional fitting); the columns have the last word. Whole numbers come from
    rounding the running sum down each column, so no sample is lost.
    """
    holds = held > 0
    spare = (stock - least * holds.sum(0)).astype(float)
    wanted = np.maximum(targets - least * holds.sum(1), 1e-9)
    table = held * wanted[:, None]
    for _ in range(FITTING_STEPS):
        table *= spare / np.maximum(table.sum(0), 1e-300)
        rows = table.sum(1)
        if np.allclose(rows, wanted, rtol=0, atol=0.01):
            break
        table *= (wanted / np.maximum(rows, 1e-300))[:, None]
    table = np.where(holds, np.maximum(table, 1e-200), 0)  # no holder has shrunk to nothing
    table *= spare / np.maximum(table.sum(0), 1e-300)
    return least * holds + rounded(table, spare)


def rounded(table: np.ndarray, sums: np.ndarray) -> np.ndarray:
    """Whole numbers near `table` with the given column sums; what is left of each column goes to the hungriest rows."""
    whole = np.floor(table).astype(np.int64)
    hunger = (table - whole).sum(1)
    for column in range(table.shape[1]):
        left = round(float(sums[column])) - int(whole[:, column].sum())
        open_rows = np.flatnonzero(table[:, column] > 0)
        if left > 0 and open_rows.size:
            chosen = open_rows[np.argsort(-hunger[open_rows], kind="stable")[:left]]
            whole[chosen, column] += 1
            hunger[chosen] -= 1
    return whole


def grouped(labels: np.ndarray, counts: np.ndarray, draw: np.random.Generator) -> list[np.ndarray]:
    """Indices per client, `counts` (clients, classes) says how many of each class; which ones is random."""
    order = draw.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]  # class by class
    stock = np.bincount(labels, minlength=counts.shape[1])
    # Samples that are nobody's come last in their class, and are owned by a client beyond the last.
    table = np.vstack([counts, stock - counts.sum(0)])
    clients = np.tile(np.arange(len(table)), table.shape[1])
    owner = np.repeat(clients, table.T.reshape(-1))
    order = order[np.argsort(owner, kind="stable")]
    return np.split(order, np.cumsum(table.sum(1)))[: len(counts)]
