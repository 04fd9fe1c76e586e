"""Sounds: files and lists, devices and states, spectrograms, and what is kept on disk."""

import gc
import math
import os
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError

from mpipfl import files
from mpipfl.data import audio, devices
from mpipfl.data.audio import Audio
from mpipfl.data.federated import Data, divide
from mpipfl.data.kept import kept
from mpipfl.data.keyed import generator
from mpipfl.data.spectrograms import filters, log_mel
from mpipfl.data.waves import read_wave
from mpipfl.errors import DataError

from ..conftest import PROJECT
from .sounds import SMALL, lay, tone, write_wave


@pytest.fixture
def words(tmp_path):
    """2 labels x 3 speakers x 4 takes."""
    return lay(tmp_path)


def opened(root: Path, clients=4, **options):
    return Audio(**SMALL | {"cache": root / "cache"} | options).open(root, 0, clients)


# ---------------------------------------------------------------------- files


def test_names_by_pattern(words):
    samples = opened(words)
    assert len(samples) == 24 * 3 and samples.takes == 3 and samples.shape == (1, 16, 16) and samples.classes == 2
    assert samples.labels.tolist() == [0] * 36 + [1] * 36 and samples.groups.tolist() == [0, 0, 1, 1]
    assert samples.users.tolist() == [s for _ in range(2) for s in range(3) for _ in range(12)]
    assert samples.states.tolist() == [0, 1, 2] * 24 and samples.division is None
    assert opened(words, states=["alarm"], repeats=2).states.tolist() == [0] * 48
    every = opened(words, wake=None, devices=0, pattern="<label>_*.wav")
    assert every.classes == 2 and every.users is None and every.groups is None and every.states is None


def speech_commands(root: Path) -> Path:
    """Its layout: a folder a label, the speaker first, lists of what is for validation and testing."""
    for label in ("marvin", "zero", "_background_noise_"):
        for speaker in ("a1", "b2", "c3"):
            for take in (0, 1):
                write_wave(root / "words" / label / f"{speaker}_nohash_{take}.wav", tone(200))
    write_wave(root / "words/_background_noise_/hum.wav", tone(50))
    for name, speaker in (("validation", "b2"), ("testing", "c3")):
        lines = [f"{label}/{speaker}_nohash_{take}.wav" for label in ("marvin", "zero", "gone") for take in (0, 1)]
        (root / "words" / f"{name}_list.txt").write_text("\n".join(lines))
    return root


def test_the_lists_of_speech_commands_are_its_division(tmp_path):
    root = speech_commands(tmp_path)
    source = SMALL | {"pattern": Audio().pattern, "wake": "marvin", "cache": str(root / "cache"), "devices": 1}
    values = {"source": source, "root": root, "clients": 1}
    data = Data.model_validate(values | {"split": {"lists": True}})
    samples = data.open(0)
    assert len(samples) == 12 * 3 and samples.labels.sum() == 18
    partition = divide(data, samples, 0)
    assert (partition.n_train, partition.n_validation, partition.n_test) == (12, 12, 12)
    speakers = [set(samples.users[partition.index[a:b]]) for a, b in ((0, 12), (12, 24), (24, 36))]
    assert speakers == [{0}, {1}, {2}]
    with pytest.raises(DataError, match="client 0 has no validation samples"):
        three = Data.model_validate(values | {"clients": 3, "partition": "natural", "split": {"lists": True}})
        divide(three, three.open(0), 0)
    with pytest.raises(ValidationError, match="give lists, or validation and test"):
        Data.model_validate(values | {"split": {"lists": True, "test": 0.2}})
    (root / "words/testing_list.txt").unlink()
    with pytest.raises(DataError, match=r"no validation_list.txt and testing_list.txt"):
        divide(data, data.open(0), 0)


def test_the_readmes_example(tmp_path):
    line = re.search(r"    data: (\{source: \{kind: audio.*)", (PROJECT / "README.md").read_text(encoding="utf-8"))
    assert line is not None
    for label in ("marvin", "zero"):
        for take in range(30):
            write_wave(tmp_path / "my_words" / label / f"a{take % 7}_nohash_{take}.wav", tone(200))
    data = Data.model_validate(yaml.safe_load(line[1]) | {"root": tmp_path})
    samples = data.open(0)
    partition = divide(data, samples, 0)
    assert samples.shape == (1, 40, 98) and partition.clients == 20 and partition.index.size == 60 * 3
    assert partition.group.tolist() == np.repeat(np.arange(5), 4).tolist()


def test_takes_of_a_clip_stay_together_and_speakers_apart(words):
    values = {"source": SMALL | {"repeats": 2, "cache": "none"}, "root": words, "clients": 2}
    for partition, samples in (("iid", None), ("iid", 100), ({"kind": "dirichlet", "alpha": 5}, None)):
        data = Data.model_validate(values | {"partition": partition, "samples": samples})
        made = divide(data, data.open(0), 0)
        parts = np.repeat(np.arange(6), np.diff(made.bounds, axis=1).ravel())
        clip = made.index // 6
        assert len(made.index) == len(np.unique(made.index)) == (144 if samples is None else 96)
        assert all(len(set(parts[clip == own])) == 1 and (clip == own).sum() == 6 for own in np.unique(clip))
        assert made.group.tolist() == [0, 1]
    data = Data.model_validate(values | {"partition": "pooled", "clients": 1, "source": SMALL | {"devices": 1}})
    samples = data.open(0)
    made = divide(data, samples, 0)
    speakers = [set(samples.users[made.index[a:b]]) for a, b in zip(made.bounds[0], made.bounds[0, 1:], strict=False)]
    assert sorted(map(len, speakers)) == [1, 1, 1] and len(set.union(*speakers)) == 3


@pytest.mark.parametrize("seed", range(3))
def test_whole_speakers_are_held_out_of_every_client(tmp_path, seed):
    """Six speakers, a third of them for testing: nobody's clips are in two parts, whichever clients have them."""
    lay(tmp_path, speakers=6, takes=4)
    source = SMALL | {"cache": "none", "repeats": 2}
    for shares, counts in (({"validation": 0, "test": 0.34}, [4, 0, 2]), ({"validation": 0.1, "test": 0.3}, [3, 1, 2])):
        split = shares | {"users": True}
        data = Data.model_validate({"source": source, "root": tmp_path, "clients": 2, "split": split})
        samples = data.open(seed)
        made = divide(data, samples, seed)
        part = np.repeat(np.tile(np.arange(3), 2), np.diff(made.bounds, axis=1).ravel())
        heard = [set(samples.users[made.index[part == own]]) for own in range(3)]
        assert [len(own) for own in heard] == counts and len(set.union(*heard)) == 6
        assert sorted(made.index) == list(range(len(samples)))
    again = [divide(data, samples, other).index.tolist() for other in (seed, seed, seed + 1)]
    assert again[0] == again[1] != again[2]


def test_speakers_that_cannot_be_held_out(words):
    def made(source=None, clients=2, **split):
        values = {"source": SMALL | {"cache": "none"} | (source or {}), "root": words, "clients": clients}
        data = Data.model_validate(values | {"split": {"users": True} | split})
        return divide(data, data.open(0), 0)

    with pytest.raises(DataError, match=r"data.split.users: the source audio does not say whose its samples are"):
        made({"pattern": "<label>_*.wav"})
    with pytest.raises(DataError, match=r"client \d+ has no (train|test) samples of users drawn for that part"):
        made({"devices": 0}, clients=12, validation=0)
    lone = SMALL | {"pattern": "<label>_<speaker>_<take>.wav", "cache": "none"}
    for path in (words / "words").glob("*_s[12]_*"):
        path.unlink()
    with pytest.raises(DataError, match=r"3 parts need as many users, there are 1"):
        made(lone)
    for other in ({"lists": True}, {"test": "official"}):
        with pytest.raises(ValidationError, match=r"give users with shares, or (lists|test=official), not both"):
            Data.model_validate({"split": {"users": True} | other})
    data = Data.model_validate({"source": "synthetic", "partition": "natural", "split": {"users": True}})
    with pytest.raises(DataError, match=r"every client makes its own samples; give shares of their samples"):
        divide(data, data.open(0), 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"folder": "nowhere"}, r"data.source.folder: no folder at .*nowhere"),
        ({"pattern": "<label>/*.wav"}, r"no files named <label>/\*.wav, for instance no_s0_0.wav"),
        ({"wake": "maybe"}, "has clips of no, yes; 'maybe', data.source.wake, is needed"),
        ({"pattern": "<label>_s0_0.wav", "wake": "no"}, None),
        ({"pattern": "no_<label>_<take>.wav", "wake": "no"}, "clips of s0, s1, s2; 'no'"),
        (
            {"pattern": "<label>.wav", "wake": 7},
            r"clips of no_s0_0, .*, no_s2_1 \.\.\. \(24 labels\); '7', data.source.wake",
        ),
        ({"hop": 1e-4}, "hop=0.0001 s is less than 1 of 2,000 samples a second"),
        ({"window": 7e-4}, "window=0.0007 s is less than 2 of 2,000 samples a second"),
        ({"devices": 5}, "devices is 5, but there are only 4 clients"),
        ({"mels": 90}, "mels=90 are too many for windows of 128 samples"),
        ({"window": 0.6}, "a clip of 0.5 s is shorter than a window of 0.6 s"),
    ],
)
def test_what_cannot_be_opened(words, options, message):
    if message is None:
        assert len(opened(words, **options)) == 6
        return
    with pytest.raises(DataError, match=message):
        opened(words, **options)


@pytest.mark.parametrize("options", [{"pattern": "*.wav"}, {"pattern": "<label><label>"}, {"pattern": "<label><who>"},
                                     {"states": []}, {"states": ["alarm", "alarm"]}, {"devices": 27}])  # fmt: skip
def test_wrong_settings(options):
    with pytest.raises(ValidationError, match=next(iter(options))):
        Audio(**options)


def test_broken_files(tmp_path):
    whole = write_wave(tmp_path / "a.wav", tone(200)).read_bytes()
    cases = {
        b"": "cannot be read as a wav file",
        b"not a wav file at all": "cannot be read as a wav file",
        whole[:30]: "cannot be read as a wav file",
        whole[:500]: r"holds 228 of 800 samples: it is empty or cut off",
        whole[:20] + b"\7" + whole[21:]: "cannot be read as a wav file",  # mu-law
    }
    for content, message in cases.items():
        (tmp_path / "a.wav").write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_wave(tmp_path / "a.wav", 2000, 100)
    for rate in (0, 999, 400_000, 1_999_999_973):
        (tmp_path / "a.wav").write_bytes(whole[:24] + rate.to_bytes(4, "little") + whole[28:])
        with pytest.raises(DataError, match=rf"1 channels of {rate:,} samples a second"):
            read_wave(tmp_path / "a.wav", 2000, 100)
    (tmp_path / "a.wav").write_bytes(whole[:34] + b"\x0c" + whole[35:])
    with pytest.raises(DataError, match="has 12 bits a sample"):
        read_wave(tmp_path / "a.wav", 2000, 100)
    (tmp_path / "a.wav").write_bytes(whole[:12] + whole[36:])
    with pytest.raises(DataError, match="it has no 'fmt ' part"):
        read_wave(tmp_path / "a.wav", 2000, 100)
    with pytest.raises(DataError, match="has 24 bits a sample; convert it to 16-bit PCM"):
        read_wave(write_wave(tmp_path / "b.wav", np.zeros(9), width=3), 2000, 100)
    with pytest.raises(DataError, match="holds 0 of 0 samples"):
        read_wave(write_wave(tmp_path / "c.wav", np.zeros(0)), 2000, 100)
    with pytest.raises(DataError, match=r"gone.wav cannot be read"):
        read_wave(tmp_path / "gone.wav", 2000, 100)


def test_parts_that_say_nothing_and_long_names_of_a_format(tmp_path):
    """A list of titles of odd length before the sound, and 16-bit PCM by WAVE_FORMAT_EXTENSIBLE."""
    ramp = np.arange(1, 9) / 64
    whole = write_wave(tmp_path / "a.wav", ramp).read_bytes()
    titles = b"LIST" + (5).to_bytes(4, "little") + b"title\0"
    more = (22).to_bytes(2, "little") + bytes(6) + (1).to_bytes(2, "little") + bytes(14)
    extensible = b"fmt " + (40).to_bytes(4, "little") + b"\xfe\xff" + whole[22:36] + more
    (tmp_path / "b.wav").write_bytes(whole[:12] + titles + extensible + titles + whole[36:] + titles)
    np.testing.assert_array_equal(read_wave(tmp_path / "b.wav", 2000, 8), np.float32(ramp))


def test_clips_are_cut_padded_mixed_and_resampled(tmp_path):
    ramp = np.arange(1, 9) / 64
    path = write_wave(tmp_path / "a.wav", ramp)
    np.testing.assert_array_equal(read_wave(path, 2000, 4), np.float32(ramp[2:6]))
    np.testing.assert_array_equal(read_wave(path, 2000, 11), np.float32([0, *ramp, 0, 0]))
    both = np.stack([ramp, ramp / 2], 1).ravel()
    stereo = read_wave(write_wave(tmp_path / "b.wav", both, channels=2), 2000, 8)
    np.testing.assert_allclose(stereo, 0.75 * ramp, atol=1e-4)
    time = np.arange(3000) / 2000
    low = write_wave(tmp_path / "c.wav", 0.5 * np.sin(2 * np.pi * 100 * time))
    again = read_wave(low, 3000, 4500)[500:-500]  # 1.5 s either way
    expected = 0.5 * np.sin(2 * np.pi * 100 * np.arange(4500) / 3000)[500:-500]
    assert np.abs(again - expected).max() < 2e-3


# ---------------------------------------------------------------------- spectrograms


def by_definition(sound: np.ndarray, rate: int, window: int, hop: int, mels: int) -> np.ndarray:
    """The formulas of spectrograms.py, sum by sum."""

    def mel(f: float) -> float:
        return 2595 * math.log10(1 + f / 700)

    tops = [700 * (10 ** ((mel(60) + i * (mel(rate / 2) - mel(60)) / (mels + 1)) / 2595) - 1) for i in range(mels + 2)]
    n = np.arange(window)
    hann = (1 - np.cos(2 * np.pi * n / window)) / 2
    rows = []
    for start in range(0, len(sound) - window + 1, hop):
        x = sound[start : start + window] * hann
        power = [abs((x * np.exp(-2j * np.pi * f * n / window)).sum()) ** 2 for f in range(window // 2 + 1)]
        column = []
        for m in range(1, mels + 1):
            total = 0.0
            for f, strength in enumerate(power):
                pitch = f * rate / window
                if tops[m - 1] < pitch <= tops[m]:
                    total += strength * (pitch - tops[m - 1]) / (tops[m] - tops[m - 1])
                elif tops[m] < pitch < tops[m + 1]:
                    total += strength * (tops[m + 1] - pitch) / (tops[m + 1] - tops[m])
            column.append(math.log(total + 1e-6))
        rows.append(column)
    table = np.array(rows).T
    return (table - table.mean()) / table.std()


@pytest.mark.parametrize("setting", [(2000, 128, 56, 16), (8000, 257, 100, 20), (16000, 400, 400, 40)])
def test_spectrograms_are_the_formula(setting):
    _, window, hop, _ = setting
    sound = np.random.default_rng(1).standard_normal(window + 3 * hop + 5) * 0.2
    got = log_mel(torch.from_numpy(np.stack([sound, 0 * sound])), *setting)
    assert got.shape == (2, setting[3], 4)
    np.testing.assert_allclose(got[0].numpy(), by_definition(sound, *setting), atol=1e-9)
    assert not got[1].any()  # silence


def test_the_bank_of_filters():
    bank = filters(16_000, 400, 40)
    assert bank.shape == (40, 201) and bank.min() == 0 and 0.6 < bank.max() <= 1
    assert (np.diff(bank.argmax(1)) > 0).all() and not bank[:, 0].any()
    inside = np.arange(201) * 40
    within = (inside > 160) & (inside < 7000)  # between the first top and the last
    np.testing.assert_allclose(bank.sum(0)[within], 1)


# ---------------------------------------------------------------------- devices


def test_a_chain_is_its_formula():
    draw = np.random.default_rng(0)
    x, noise = draw.standard_normal((2, 3, 300))
    h = np.zeros(90)
    h[[0, 7, 60]] = 1, 0.5, -0.3
    chain = devices.Chain(torch.from_numpy(np.fft.rfft(h, 390)), 2.0, 0.1, 1.5)
    got = devices.recorded(chain, torch.from_numpy(x), torch.from_numpy(noise)).numpy()
    for row in range(3):
        heard = 2 * np.convolve(x[row], h)[:300] + 0.1 * noise[row]
        np.testing.assert_allclose(got[row], np.clip(heard, -1.5, 1.5), atol=1e-12)


def test_a_devices_chain_by_definition():
    """From the draws on: echoes that die away by 60 dB in their time and are as strong as said beside the voice, and a
    response that goes straight between octaves on a scale of dB and pitch."""
    rate, samples, device = 8000, 1000, 3
    draw = generator(5, "audio: device", device)
    gain, noise, limit = draw.uniform(-9, 9), draw.uniform(-60, -40), draw.uniform(0.2, 1.0)
    echo, wet = draw.uniform(0.1, 0.4), draw.uniform(0, 1)
    tail = enumerate(draw.standard_normal(2400))
    room = np.array([x * math.exp(-math.log(1000) * n / (echo * rate)) for n, x in tail])
    room *= wet / math.sqrt(sum(room**2))
    room[0] = 1
    octaves = draw.uniform(-9, 9, 9)
    chain = devices.chain(5, device, samples, rate)
    assert chain[1:] == pytest.approx((10 ** (gain / 20), 10 ** (noise / 20), limit), rel=1e-12)
    assert len(chain.filter) == 3400 // 2 + 1
    for bin in (0, 7, 100, 400, 1234, 1700):
        pitch = max(bin * rate / 3400, 31.25)
        octave = min(int(math.log2(pitch / 31.25)), 7)
        share = math.log2(pitch / 31.25) - octave
        decibels = (1 - share) * octaves[octave] + share * octaves[octave + 1]
        heard = sum(x * np.exp(-2j * np.pi * bin * n / 3400) for n, x in enumerate(room))
        assert complex(chain.filter[bin]) == pytest.approx(heard * 10 ** (decibels / 20), rel=1e-9)
    others = [devices.chain(5, number, samples, rate) for number in range(5)]
    assert len({other.gain for other in others}) == 5 and others[3].gain == chain.gain
    assert devices.chain(6, device, samples, rate).gain != chain.gain


@pytest.mark.parametrize(("state", "least", "most"), [("playback", 3, 15), ("alarm", 0, 12)])
def test_backgrounds_are_as_loud_as_said(state, least, most):
    voice = tone(300, rate=8000).astype(np.float32)
    for seed in range(20):
        heard = devices.with_background(voice, state, generator(seed, "test"), 8000)
        ratio = 10 * np.log10(np.square(voice).mean() / np.square(heard - voice).mean())
        assert least - 1e-3 <= ratio <= most + 1e-3
    assert np.isfinite(devices.with_background(np.zeros(800, np.float32), state, generator(0, "test"), 8000)).all()


def test_devices_and_takes_differ_and_repeat(words):
    samples = opened(words, repeats=2, cache=words / "none")
    rows = np.arange(samples.takes)
    by_device = [samples.read(rows, client) for client in range(4)]
    np.testing.assert_array_equal(by_device[0], by_device[1])  # clients 0 and 1 have device A
    assert np.abs(by_device[0] - by_device[2]).mean() > 0.1
    for one in range(6):
        for other in range(one):
            assert np.abs(by_device[0][one] - by_device[0][other]).max() > 0.1, (one, other)
    np.testing.assert_allclose(samples.read(rows[::-1], 0)[::-1], by_device[0], atol=1e-5)
    other = Audio(**SMALL | {"repeats": 2, "cache": words / "none"}).open(words, 1, 4)
    assert np.abs(other.read(rows, 0) - by_device[0]).mean() > 0.1
    clean = opened(words, devices=0, states=["normal"], cache=words / "none").read(np.array([3]), 0)[0, 0]
    plain = read_wave(words / "words/no_s0_3.wav", 2000, 1000).astype(np.float64)
    np.testing.assert_allclose(clean, by_definition(plain, 2000, 128, 56, 16), atol=1e-5)


# ---------------------------------------------------------------------- the cache


def test_what_is_kept_is_not_made_again(words, monkeypatch):
    samples, rows = opened(words), np.arange(9, 30)
    first = np.array(samples.read(rows, 0))
    (file,) = (words / "cache").iterdir()

    def refuse(*_):
        raise AssertionError("read again")

    monkeypatch.setattr(audio, "read_wave", refuse)
    np.testing.assert_array_equal(samples.read(rows, 0), first)
    np.testing.assert_array_equal(opened(words).read(rows, 1), first)  # another client with this device
    for change in (
        lambda: samples.read(rows[1:], 0),
        lambda: samples.read(rows, 2),
        lambda: opened(words, hop=0.027).read(rows, 0),
    ):
        with pytest.raises(AssertionError):
            change()
    os.utime(words / "words/no_s1_0.wav", ns=(1, 1))  # another file than it was
    with pytest.raises(AssertionError):
        samples.read(rows, 0)
    assert list((words / "cache").iterdir()) == [file]  # nothing half-made is left


def test_many_may_make_it_at_once_and_be_killed(tmp_path, monkeypatch):
    """In the middle of one's work another begins and ends; one that is ended half-way leaves nothing to be read."""
    path, parts = tmp_path / "deep/kept.npy", [np.full((2, 3), i, np.float32) for i in range(4)]

    def make(work):
        return kept(path, (8, 3), np.dtype(np.float32), work)

    def ended():
        yield parts[0]
        raise KeyboardInterrupt

    def overtaken():
        yield from parts[:2]
        monkeypatch.setattr(files.os, "getpid", lambda: -1)
        assert not path.exists() and (make(lambda: parts) == np.concatenate(parts)).all()
        monkeypatch.undo()
        yield from parts[2:]

    with pytest.raises(KeyboardInterrupt):
        make(ended)
    assert not any((tmp_path / "deep").iterdir())
    (tmp_path / "deep/.kept.npy.elsewhere.1").write_bytes(b"of a killed one")
    assert (make(overtaken) == np.concatenate(parts)).all()
    assert (make(ended) == np.concatenate(parts)).all()
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"kept.npy"):
        make(ended)
    np.save(path, np.zeros(3, np.float32))
    with pytest.raises(DataError, match="other samples than it should; delete it"):
        make(ended)


def test_without_a_place_to_keep_it(words):
    (words / "cache").write_text("a file, not a folder")
    rows = np.arange(5)
    np.testing.assert_array_equal(opened(words).read(rows, 0), opened(words, cache=words / "other").read(rows, 0))


def test_memory_does_not_grow_with_the_number_of_clips(words, monkeypatch):
    """Spectrograms are written as they are made: of all chunks only the one at hand, and the one before it, are there
    at the same time."""
    alive, most, made = weakref.WeakSet(), [], []

    def counted(*arguments):
        out = log_mel(*arguments)
        gc.collect()
        alive.add(out)
        most.append(len(alive))
        made.append(len(out))
        return out

    monkeypatch.setattr(audio, "log_mel", counted)
    samples = opened(words, devices=0, states=["normal"])
    samples.files = samples.files[:1] * 512
    found = samples.read(np.arange(512), 0)
    assert max(made) == audio.CHUNK and sum(made) == 512 == len(found) and isinstance(found, np.memmap | np.ndarray)
    assert max(most) <= 2


def test_spoken_digits(real_data, tmp_path):
    source = Audio(
        folder="fsdd/recordings", pattern="<label>_<speaker>_<take>.wav", wake="7", rate=8000, cache=tmp_path
    )
    samples = source.open(real_data, 0, 5)
    assert len(samples) == 4500 and samples.labels.sum() == 450 and len(np.unique(samples.users)) == 6
    x = samples.read(np.arange(0, 4500, 300), 3)
    assert x.shape == (15, *samples.shape) and np.isfinite(x).all()
    np.testing.assert_allclose(x.std((1, 2, 3)), 1, atol=1e-4)
