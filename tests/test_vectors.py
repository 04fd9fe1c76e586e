"""Word vectors from files in GloVe's format, and the words that are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from mpipfl.data.words import Vocabulary
from mpipfl.errors import DataError
from mpipfl.models import Batched, Model, build
from mpipfl.models.vectors import Embedding, Glove, Learned, read

FILE = "the 1 2 3\ncat -0.5 0.25 1e-3\n. . . 7 8 9\ndog 4 5 6\nthe 0 0 0\n"


def lay(folder: Path, text: str = FILE) -> Path:
    (folder / "v.txt").write_text(text, encoding="utf-8")
    return folder


def table(root: Path, *words: str, seed: int = 0, **options: object) -> torch.Tensor:
    return Glove(path=Path("v.txt"), **options).table(Vocabulary(words, root, seed))


def test_ids_get_their_words_vectors(tmp_path: Path) -> None:
    found = table(lay(tmp_path), "cat", "the", ". . .")
    assert found.shape == (5, 3) and found.dtype == torch.float32
    assert found[0].tolist() == [0, 0, 0]
    assert torch.equal(found[2:], torch.tensor([[-0.5, 0.25, 1e-3], [1, 2, 3], [7, 8, 9]]))


def test_unknown_words_follow_from_seed_and_word(tmp_path: Path) -> None:
    first = table(lay(tmp_path), "the", "zebra", "yak")
    again = table(tmp_path, "yak", "cat", "zebra")
    assert torch.allclose(first[3] / first[4], again[4] / again[2])  # the same but for the known words' scale
    other = table(tmp_path, "the", "zebra", "yak", seed=1)
    assert torch.equal(other[2], first[2]) and not torch.equal(other[3], first[3])
    rows = first[[1, 3, 4]]  # the unknown word, zebra, yak
    assert len({tuple(row) for row in rows.tolist()}) == 3 and rows.abs().min() > 0


def test_they_are_as_large_as_the_files(tmp_path: Path) -> None:
    words = [f"w{i}" for i in range(500)]
    found = table(lay(tmp_path, "the " + " ".join(["3", "-3"] * 10)), "the", *words)
    assert found[3:].std() == pytest.approx(3, rel=0.05)


def test_a_header_is_passed_over(tmp_path: Path) -> None:
    assert table(lay(tmp_path, "5 3\n" + FILE), "dog")[2].tolist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FILE + "yak 1 2\n", r"v.txt, line 6: 3 fields; expected a word and 3 numbers"),
        ("<html>\n", r"line 1: 1 fields; expected a word and its numbers"),
        (FILE + "yak 1 x 2\n", r"line 6: the vector of 'yak' has something else than finite numbers"),
        (FILE + "yak 1 nan 2\n", "line 6: .*finite"),
        ("who 1 2 3\n", "for none of the 2 words; is it the right file"),
        ("", "for none of the 2 words"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        table(lay(tmp_path, text), "yak", "the") if "who" not in text else table(lay(tmp_path, text), "a", "b")


def test_without_a_file(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"model.embedding.path: no file at .*v.txt nor.* Or .*embedding=\{kind: learned, size: 50\}"
    ):
        table(tmp_path, "the")


def test_short_forms() -> None:
    check = TypeAdapter(Embedding).validate_python
    assert check("glove") == Glove() and check("learned") == check({"size": 50}) == Learned()
    assert check({"kind": "glove", "frozen": False}) == Glove(frozen=False)
    for wrong in ("word2vec", {"kind": "glove", "size": 3}, {"size": 0}, 5):
        with pytest.raises(ValidationError):
            check(wrong)


def vectors(network: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, weights) for name, weights in network.state_dict().items() if weights.shape == (5, 3)]


@pytest.mark.parametrize(("kind", "rest"), [("text", 3 * 2 + 2), ("lstm", 16 * (3 + 4 + 2) + 4 * 2 + 2)])
def test_frozen_vectors_are_no_part_of_theta(tmp_path: Path, kind: str, rest: int) -> None:
    vocabulary = Vocabulary(("the", "cat", "zebra"), lay(tmp_path))
    sizes = {} if kind == "text" else {"hidden": 4, "layers": 1}
    for frozen in (True, False):
        embedding = {"kind": "glove", "path": "v.txt", "frozen": frozen}
        section = TypeAdapter(Model).validate_python({"kind": kind, "embedding": embedding, **sizes})
        batched = Batched(build(section, (4,), 2, 0, vocabulary), (4,))
        assert batched.translated and batched.dimension == rest + (0 if frozen else 5 * 3)
        other = Batched(build(section, (4,), 2, 1, vocabulary), (4,))
        assert not torch.equal(batched.initial(), other.initial())
        glorot = build(section.model_copy(update={"init": "glorot"}), (4,), 2, 0, vocabulary)
        assert any(torch.equal(weights, batched.network.state_dict()[name]) for name, weights in vectors(glorot))
        x = torch.tensor([2.0, 3, 4, 0]).expand(2, 1, 4)
        out = batched.outputs(batched.split(batched.initial().expand(2, -1)), x)
        assert torch.allclose(out[0], batched.network(x[0]), atol=1e-6)


def test_only_the_needed_vectors_are_kept(tmp_path: Path) -> None:
    import tracemalloc

    lay(tmp_path, "".join(f"w{i} " + " ".join(["0.125"] * 50) + "\n" for i in range(5_000)))
    tracemalloc.start()
    found = read(tmp_path / "v.txt", Vocabulary(("w3", "w4999")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.all(found[2:] == 0.125) and peak < 3e5  # all of them: 1 MB as float32


def test_real_vectors(real_data: Path) -> None:
    words = ("the", "good", "bad", "great", "tuesday")
    found = Glove(path=Path("glove/glove.6B.50d.top20k.txt")).table(Vocabulary(words, real_data))
    near = torch.nn.functional.cosine_similarity(found[3:4], found[2:])
    assert near[3] > 0.7 > near[4] and found.shape == (7, 50)
