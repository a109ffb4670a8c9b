"""Pictures as Braid decodes and resizes them, against Pillow: every byte must be equal.

The pictures are made here from fixed seeds, plus photographs that Python packages bring along. `braid data image` takes
all files of a test at once and writes one tensor per file.

    BRAID=build/braid python -m pytest tests/oracles/image_test.py
"""

import io
import os
import struct
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from safetensors.numpy import load_file

from programs import run_program

SIZES = [(1, 1), (1, 17), (23, 1), (2, 3), (7, 5), (16, 16), (33, 9), (127, 65)]  # width, height


def picture(width, height, channels=3, seed=0):
    """Smooth areas with edges and some noise, so that upsampling, filters and prediction all matter."""
    rng = np.random.default_rng([width, height, channels, seed])
    y, x = np.mgrid[:height, :width]
    planes = [128 + 90 * np.sin(x / (5 + 3 * c)) + 60 * np.cos(y / (4 + c)) * ((x // 9 + y // 7) % 2)
              for c in range(channels)]
    values = np.stack(planes, -1) + rng.normal(0, 8, (height, width, channels))
    return np.clip(values, 0, 255).astype(np.uint8)


def rgb_of(file, orient=True):
    with Image.open(file) as image:
        return np.asarray((ImageOps.exif_transpose(image) if orient else image).convert("RGB"))


def braid_pixels(files, out, *options):
    """By file: the line that Braid prints, and the pixels."""
    out.mkdir(exist_ok=True)
    run = run_program([os.environ["BRAID"], "data", "image", *files, "--out", out, *options])
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""  # libraries print no warnings
    lines = run.stdout.splitlines()
    assert len(lines) == len(files)
    return {file: (line, load_file(out / f"{file.name}.safetensors")["pixels"]) for file, line in zip(files, lines)}


def assert_equal(ours, theirs, what):
    assert ours.dtype == np.uint8 and ours.shape == theirs.shape, what
    difference = np.abs(ours.astype(int) - theirs)
    assert difference.max() == 0, f"{what}: {np.count_nonzero(difference)} bytes differ, by up to {difference.max()}"


def check_decoding(files, out, format_name):
    for file, (line, pixels) in braid_pixels(files, out).items():
        with Image.open(file) as image:
            width, height = image.size
        assert line.startswith(f"{file}: {format_name} of {width} x {height}, orientation "), line
        assert_equal(pixels, rgb_of(file), file.name)


def save_all(folder, variants, ending):
    """variants: name -> (image, options of Image.save)"""
    files = []
    for name, (image, options) in variants.items():
        files.append(folder / f"{name}.{ending}")
        image.save(files[-1], **options)
    return files


def test_jpeg(tmp_path):
    variants = {}
    for width, height in SIZES:
        colour, grey = Image.fromarray(picture(width, height)), Image.fromarray(picture(width, height)[..., 0])
        cmyk = Image.fromarray(picture(width, height, channels=4), "CMYK")
        for sampling in ("4:4:4", "4:2:2", "4:2:0", "4:1:1"):
            for progressive in (False, True):
                name = f"{width}x{height}_{sampling.replace(':', '')}_{progressive}"
                variants[name] = (colour, dict(quality=83, subsampling=sampling, progressive=progressive))
        size = f"{width}x{height}"
        variants[f"{size}_low"] = (colour, dict(quality=5))
        variants[f"{size}_best"] = (colour, dict(quality=100, optimize=True))
        variants[f"{size}_grey"] = (grey, dict(quality=75))
        variants[f"{size}_grey_progressive"] = (grey, dict(quality=75, progressive=True))
        variants[f"{size}_cmyk"] = (cmyk, dict(quality=90))
        variants[f"{size}_restarts"] = (colour, dict(quality=80, restart_marker_blocks=3))
        variants[f"{size}_rows"] = (colour, dict(quality=80, restart_marker_rows=1, progressive=True))
        variants[f"{size}_rgb"] = (colour, dict(quality=80, keep_rgb=True))
        variants[f"{size}_comment"] = (colour, dict(quality=80, comment=b"x" * 60_000, icc_profile=b"p" * 100_000))
    check_decoding(save_all(tmp_path, variants, "jpg"), tmp_path / "out", "JPEG")


def with_segment(jpeg, marker, data):
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data + jpeg[2:]


def test_ycck_and_missing_adobe_marker(tmp_path):
    """Pillow writes only plain CMYK; the Adobe marker says whether the inks are stored as YCCK."""
    files = []
    stored = io.BytesIO()
    Image.fromarray(picture(40, 24, channels=4), "CMYK").save(stored, "jpeg", quality=90)
    plain = stored.getvalue()
    at = plain.index(b"Adobe")
    for name, jpeg in {
        "ycck": plain[:at + 11] + b"\2" + plain[at + 12:],
        "no_adobe": plain[:at - 4] + plain[at + 12:],
    }.items():
        files.append(tmp_path / f"{name}.jpg")
        files[-1].write_bytes(jpeg)
    assert len({rgb_of(file).tobytes() for file in files}) == 2
    check_decoding(files, tmp_path / "out", "JPEG")


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, bits, colour, rows, extra=b""):
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0))
    raw = b"".join(b"\0" + row for row in rows)
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}


def png_variants(folder):
    rng = np.random.default_rng(7)
    for colour, depths in DEPTHS.items():
        for bits in depths:
            for width, height in SIZES:
                row_bytes = -(-width * CHANNELS[colour] * bits // 8)
                rows = [rng.integers(0, 256, row_bytes, np.uint8).tobytes() for _ in range(height)]
                if colour == 0 and bits == 16:  # dark ones too: brighter ones are clipped
                    rows = [np.where(np.arange(width) % 2, 300, rng.integers(0, 256, width)).astype(">u2").tobytes()
                            for _ in range(height)]
                palette = chunk(b"PLTE", rng.integers(0, 256, 3 * min(2**bits, 200), np.uint8).tobytes())
                alpha = {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: bytes([0, 128])}.get(colour)
                extras = {"": b""} | ({"_trns": chunk(b"tRNS", alpha)} if alpha else {})
                for name, extra in extras.items():
                    file = folder / f"png{colour}_{bits}_{width}x{height}{name}.png"
                    file.write_bytes(png(width, height, bits, colour, rows, (palette if colour == 3 else b"") + extra))
                    yield file


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
def test_png(tmp_path):
    """Every kind of pixel; of 8 bits per palette entry, some indices lie outside the palette."""
    check_decoding(list(png_variants(tmp_path)), tmp_path / "out", "PNG")


def interlaced(width, height, bits, colour, samples):
    """samples: [height, width, channels]; the seven passes of Adam7, each a picture of its own."""
    raw = b""
    for left, top, right, down in ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2),
                                   (0, 1, 1, 2)):
        part = samples[top::down, left::right]
        if part.size:
            raw += b"".join(b"\0" + row.astype(">u2" if bits == 16 else "u1").tobytes() for row in part)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 1))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def test_interlaced_png(tmp_path):
    rng = np.random.default_rng(8)
    files = []
    for colour in (0, 2, 4, 6):
        for bits in (8, 16):
            for width, height in SIZES:
                samples = rng.integers(0, 2**bits, (height, width, CHANNELS[colour]))
                files.append(tmp_path / f"{colour}_{bits}_{width}x{height}.png")
                files[-1].write_bytes(interlaced(width, height, bits, colour, samples))
    check_decoding(files, tmp_path / "out", "PNG")


def test_webp(tmp_path):
    variants = {}
    for width, height in SIZES:
        colour = Image.fromarray(picture(width, height))
        alpha = Image.fromarray(picture(width, height, channels=4))
        for name, image in {"rgb": colour, "rgba": alpha}.items():
            variants[f"{name}_{width}x{height}_lossy"] = (image, dict(quality=70))
            variants[f"{name}_{width}x{height}_lossless"] = (image, dict(lossless=True))
            variants[f"{name}_{width}x{height}_exact"] = (image, dict(lossless=True, exact=True))
    frames = [Image.fromarray(picture(40, 30, 4, seed)) for seed in range(3)]
    for lossless in (False, True):
        variants[f"animated_{lossless}"] = (frames[0], dict(save_all=True, append_images=frames[1:], lossless=lossless))
    check_decoding(save_all(tmp_path, variants, "webp"), tmp_path / "out", "WebP")


def test_orientation(tmp_path):
    image = Image.fromarray(picture(37, 21))
    files = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        exif[0x010F] = "maker"
        for ending, options in (("jpg", dict(quality=90)), ("png", {}), ("webp", dict(lossless=True))):
            files.append(tmp_path / f"{orientation}.{ending}")
            image.save(files[-1], exif=exif, **options)
    for file, (line, pixels) in braid_pixels(files, tmp_path / "oriented").items():
        assert f" of 37 x 21, orientation {file.stem}, " in line
        assert_equal(pixels, rgb_of(file), file.name)
    for file, (line, pixels) in braid_pixels(files, tmp_path / "stored", "--no-orient").items():
        assert_equal(pixels, rgb_of(file, orient=False), file.name)


def test_big_endian_exif(tmp_path):
    stored = io.BytesIO()
    Image.fromarray(picture(9, 5)).save(stored, "jpeg")
    tiff = b"MM\0*" + struct.pack(">IH", 8, 1) + struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0) + bytes(4)
    file = tmp_path / "big.jpg"
    file.write_bytes(with_segment(stored.getvalue(), 0xE1, b"Exif\0\0" + tiff))
    assert rgb_of(file).shape == (9, 5, 3)
    check_decoding([file], tmp_path / "out", "JPEG")


RESIZES = [  # from, to
    ((64, 48), (64, 48)), ((64, 48), (64, 20)), ((64, 48), (20, 48)), ((64, 48), (65, 47)), ((64, 48), (32, 24)),
    ((64, 48), (128, 96)), ((97, 61), (13, 7)), ((97, 61), (301, 199)), ((97, 61), (1, 1)), ((1, 1), (50, 40)),
    ((1, 200), (30, 10)), ((200, 1), (10, 30)), ((3, 2), (2, 3)), ((2, 2), (257, 3)), ((1000, 3), (7, 500)),
    ((640, 480), (512, 512)), ((640, 480), (448, 224)), ((511, 513), (512, 512)), ((800, 600), (288, 224)),
    ((1200, 900), (16, 16)), ((5, 3000), (5, 4)), ((300, 200), (299, 201)), ((123, 457), (640, 480)),
]


@pytest.mark.parametrize("filter_name", ["bicubic", "bilinear"])
def test_resize(tmp_path, filter_name):
    for (width, height), size in RESIZES:
        file = tmp_path / f"{width}x{height}.png"
        noise = np.random.default_rng([width, height]).integers(0, 256, (height, width, 3), np.uint8)
        # Full contrast drives the sums of the bicubic filter out of 0..255.
        image = Image.fromarray(np.where(picture(width, height) > 128, noise, noise // 128 * 255).astype(np.uint8))
        image.save(file, compress_level=1)
        options = ["--width", size[0], "--height", size[1], "--filter", filter_name]
        (_, pixels), = braid_pixels([file], tmp_path / "out", *options).values()
        theirs = np.asarray(image.resize(size, Image.Resampling[filter_name.upper()]))
        assert_equal(pixels, theirs, f"{width} x {height} to {size}, {filter_name}")


def photographs():
    """Those that come with packages; the packages themselves are slow to import."""
    folders = [("skimage", "data"), ("sklearn", "datasets/images")]
    folders = [Path(find_spec(package).submodule_search_locations[0]) / folder for package, folder in folders]
    return sorted(file for folder in folders for file in folder.iterdir() if file.suffix in (".jpg", ".png"))


def test_photographs(tmp_path):
    files = photographs()
    assert len(files) >= 10
    for file, (_, pixels) in braid_pixels(files, tmp_path / "full").items():
        assert_equal(pixels, rgb_of(file), file.name)
    for file, (_, pixels) in braid_pixels(files, tmp_path / "small", "--width", 512, "--height", 384).items():
        theirs = np.asarray(Image.fromarray(rgb_of(file)).resize((512, 384), Image.Resampling.BICUBIC))
        assert_equal(pixels, theirs, file.name)


def test_scaled_decoding(tmp_path):
    """Decoded at 1/8, 1/4 or 1/2 and then resized: close to what Pillow gets from the whole picture, not equal."""
    file = tmp_path / "photo.jpg"
    Image.fromarray(picture(400, 240)).save(file, quality=95)
    full = Image.fromarray(rgb_of(file))
    for width, height in ((200, 120), (100, 60), (50, 30), (51, 30), (37, 20), (390, 10)):
        options = ["--scaled-decode", "--width", width, "--height", height]
        (_, pixels), = braid_pixels([file], tmp_path / "out", *options).values()
        theirs = np.asarray(full.resize((width, height), Image.Resampling.BICUBIC))
        assert pixels.shape == theirs.shape
        assert np.abs(pixels.astype(int) - theirs).mean() < 12, (width, height)


def test_refused_files_are_named(tmp_path):
    good, truncated, text = tmp_path / "good.jpg", tmp_path / "cut.jpg", tmp_path / "text.png"
    Image.fromarray(picture(64, 64)).save(good)
    truncated.write_bytes(good.read_bytes()[:-200])
    text.write_text("no picture")
    run = run_program([os.environ["BRAID"], "data", "image", good, truncated, text])
    assert run.returncode == 1
    assert [line.split(": ")[0] for line in run.stdout.splitlines()] == [str(good)]
    assert f"{truncated}: the JPEG file ends early" in run.stderr
    assert f"{text}: this is not a JPEG, PNG or WebP file" in run.stderr
    assert "2 of 3 pictures could not be decoded" in run.stderr
