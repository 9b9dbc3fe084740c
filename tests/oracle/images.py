"""Write `tests/fixtures/images/`: what torchvision, Pillow and the image processors of transformers make of small images:
`python images.py`. It needs the packages of `images.txt` beside those of `requirements.txt`."""

import hashlib
import json
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import PIL
import torch
import torchvision
import transformers
from PIL import Image
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as tvF
from transformers import SmolVLMImageProcessor
from transformers.image_utils import SizeDict
from transformers.models.got_ocr2.image_processing_got_ocr2 import get_optimal_tiled_canvas
from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size
from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize
from transformers.models.smolvlm.image_processing_smolvlm import get_resize_output_image_size as get_longest_edge_size
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

OUT = Path(__file__).parents[1] / "fixtures" / "images"
REFERENCE = f"Pillow {PIL.__version__}, torchvision {torchvision.__version__.split('+')[0]}, transformers {transformers.__version__}"
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC, "lanczos": Image.Resampling.LANCZOS}
FROM = [(1, 1), (1, 9), (9, 1), (13, 11), (64, 48), (37, 90), (3, 150), (150, 3), (120, 101)]
TO = [(1, 1), (2, 5), (16, 16), (64, 48), (31, 77), (200, 3), (3, 200), (97, 130)]


def noise(seed, width, height, hard):
    """Bytes of a linear congruential generator; `hard` has only 0 and 255."""
    numbers, state = [], seed
    for _ in range(width * height * 3):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        numbers.append((state >> 63) * 255 if hard else state >> 56)
    return np.array(numbers, np.uint8).reshape(height, width, 3)


def sha256(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def resized(pixels, library, name, width, height):
    if library == "pillow":
        # Pillow 13 begins with one axis or the other; older versions, and we, always with the rows.
        wide = Image.fromarray(pixels).resize((width, pixels.shape[0]), FILTERS[name])
        return np.asarray(wide.resize((width, height), FILTERS[name]))
    image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
    return tvF.resize(image, [height, width], interpolation=InterpolationMode(name), antialias=True).permute(1, 2, 0).numpy()


def resize_cases():
    cases = []
    for index, (from_size, to_size) in enumerate((a, b) for a in FROM for b in TO):
        for name in FILTERS:
            for library in ("torchvision", "pillow"):
                hard = index % 2 == 1
                try:
                    result = resized(noise(index, *from_size, hard), library, name, *to_size)
                except RuntimeError as error:  # torch 2.15 has an assertion that fails for some images of a few pixels.
                    print(from_size, to_size, name, str(error)[:60])
                    continue
                case = {"seed": index, "hard": hard, "from": from_size, "to": to_size, "filter": name, "library": library}
                small = {"bytes": result.flatten().tolist()} if result.size <= 30 else {}
                cases.append(case | {"sha256": sha256(result)} | small)
    return cases


class SizesOnly(SmolVLMImageProcessor):
    """Records the sizes, and computes no pixels."""

    sizes = []

    def resize(self, image, size, resample=None, **_):
        new = get_longest_edge_size(image, size.longest_edge) if size.longest_edge else (size.height, size.width)
        self.sizes.append(new[::-1])
        return image.new_empty((*image.shape[:-2], *new))


def size_cases():
    """Random sizes, and what each family makes of them."""
    rng, cases = random.Random(5), []
    for _ in range(400):
        width, height = (int(2 ** rng.uniform(0, 12.5)) for _ in range(2))
        case = {"width": width, "height": height}
        image = torch.empty((1, 3, height, width), dtype=torch.uint8, device="meta")
        for key, longest, tile in [("smolvlm", 2048, 512), ("smolvlm_2b", 1536, 384), ("smolvlm_huge", 6000, 364)]:
            processor = SizesOnly()
            processor.sizes = []
            fitted = processor.resize_for_vision_encoder(processor.resize(image, SizeDict(longest_edge=longest)), tile)
            frames, rows, columns = processor.split_images(fitted, {"longest_edge": tile})
            case[key] = {"sizes": processor.sizes[:2], "rows": rows[0], "columns": columns[0], "frames": list(frames.shape[1:2])}
        case["internvl"] = get_optimal_tiled_canvas((height, width), (448, 448), 1, 12)
        case["internvl_few"] = get_optimal_tiled_canvas((height, width), (224, 224), 2, 6)
        case["pixtral"] = get_resize_output_image_size(image[0], (1024, 1024), (16, 16), "channels_first")[::-1]
        case["pixtral_1540"] = get_resize_output_image_size(image[0], (1540, 1540), (28, 28), "channels_first")[::-1]
        for key, factor, least, most in [("qwen2", 28, 56 * 56, 28 * 28 * 1280), ("qwen3", 32, 65536, 16777216)]:
            try:
                case[key] = smart_resize(height, width, factor, least, most)[::-1]
            except ValueError:
                case[key] = None
        cases.append(case)
    return cases


def smolvlm_cases():
    """The pixels and the text of images, by a processor with tiles of 32 pixels and one without tiles."""
    cases = []
    for splits in (True, False):
        processor = SmolVLMImageProcessor(size={"longest_edge": 96}, max_image_size={"longest_edge": 32}, do_image_splitting=splits)
        for index, (width, height) in enumerate([(40, 30), (30, 40), (32, 32), (2, 1), (100, 7), (7, 90), (200, 150), (97, 301)]):
            image = Image.fromarray(noise(index, width, height, False))
            found = processor(image, return_row_col_info=True, return_tensors="pt")
            assert bool(found["pixel_attention_mask"].all())
            rows, columns = found["rows"][0][0], found["cols"][0][0]
            text = get_image_prompt_string(rows, columns, 3, "<fake>", "<image>", "<global>")
            cases.append({
                "splits": splits, "seed": index, "width": width, "height": height, "rows": rows, "columns": columns, "text": text,
                "shape": list(found["pixel_values"].shape[1:]), "sha256": sha256(found["pixel_values"].numpy()),
            })
    return cases


def files():
    """Small files in each format, and their pixels as Pillow reads them, turned and over white."""
    rng = np.random.default_rng(3)
    rgb, gray = noise(1, 12, 10, False), noise(2, 12, 10, False)[:, :, 0]
    smooth = np.asarray(Image.fromarray(noise(3, 4, 4, False)).resize((24, 16), Image.Resampling.BICUBIC))
    alpha = np.dstack([noise(4, 40, 40, False), rng.integers(0, 256, (40, 40), np.uint8)])
    palette = Image.fromarray(rgb).quantize(7)
    transparent = palette.copy()
    transparent.info["transparency"] = 2
    turned = Image.Exif()
    turned[0x0112] = 6
    images = {
        "rgb.png": (Image.fromarray(rgb), {}),
        "gray.png": (Image.fromarray(gray), {}),
        "bit.png": (Image.fromarray(gray > 128), {}),
        "alpha.png": (Image.fromarray(alpha), {}),
        "gray_alpha.png": (Image.fromarray(alpha[:, :, 2:], mode="LA"), {}),
        "palette.png": (palette, {}),
        "palette_transparent.png": (transparent, {"transparency": 2}),
        "wide.png": (Image.fromarray(noise(5, 45, 20, False)), {}),
        "tall.png": (Image.fromarray(noise(6, 9, 40, False)), {}),
        "turned.png": (Image.fromarray(rgb), {"exif": turned}),
        "rgb.bmp": (Image.fromarray(rgb), {}),
        "rgb.gif": (palette, {}),
        "rgb.webp": (Image.fromarray(rgb), {"lossless": True}),
        "alpha.webp": (Image.fromarray(alpha), {"lossless": True, "exact": True}),
        "lossy.webp": (Image.fromarray(smooth), {"quality": 90}),
        "444.jpg": (Image.fromarray(smooth), {"quality": 95, "subsampling": 0}),
        "420.jpg": (Image.fromarray(smooth), {"quality": 90, "subsampling": 2}),
        "gray.jpg": (Image.fromarray(smooth[:, :, 0]), {"quality": 95}),
        "cmyk.jpg": (Image.fromarray(smooth).convert("CMYK"), {"quality": 95}),
        "progressive.jpg": (Image.fromarray(smooth), {"quality": 95, "progressive": True}),
        "turned.jpg": (Image.fromarray(smooth), {"quality": 95, "exif": turned}),
    }
    cases = []
    for name, (image, options) in images.items():
        image.save(OUT / name, **options)
        read = Image.open(OUT / name)
        read = PIL.ImageOps.exif_transpose(read)
        if read.mode in ("RGBA", "LA") or "transparency" in read.info:
            white = Image.new("RGBA", read.size, (255, 255, 255))
            read = Image.alpha_composite(white, read.convert("RGBA"))
        read = np.asarray(read.convert("RGB"))
        lossy = name.endswith(".jpg") or name == "lossy.webp"
        case = {"file": name, "width": read.shape[1], "height": read.shape[0], "sha256": sha256(read)}
        cases.append(case | ({"bytes": read.flatten().tolist()} if lossy else {}))
    return cases


def animation():
    frames = [Image.fromarray(noise(seed, 6, 5, True)[:, :, 0]).convert("P") for seed in (8, 9)]
    frames[0].save(OUT / "frames.gif", save_all=True, append_images=frames[1:], duration=100)
    first = np.asarray(Image.open(OUT / "frames.gif").convert("RGB"))
    return {"file": "frames.gif", "width": 6, "height": 5, "sha256": sha256(first)}


def write_png(name, width, height, depth, rows):
    """A file with RGB pixels, whose rows need not fill it."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (OUT / name).write_bytes(b"\x89PNG\r\n\x1a\n" + chunks)


def sixteen_bits():
    """A PNG file with 16 bits per channel, whose numbers become the nearest of 8 bits."""
    numbers = np.random.default_rng(7).integers(0, 65536, (5, 6, 3))
    write_png("sixteen.png", 6, 5, 16, b"".join(b"\0" + row.astype(">u2").tobytes() for row in numbers))
    return {"file": "sixteen.png", "width": 6, "height": 5, "sha256": sha256(np.rint(numbers / 257).astype(np.uint8))}


def write(name, cases):
    lines = ",\n".join("  " + json.dumps(case) for case in cases)
    (OUT / name).write_text(f'{{\n "reference": "{REFERENCE}",\n "cases": [\n{lines}\n ]\n}}\n')
    print(name, len(cases))


def main():
    OUT.mkdir(exist_ok=True)
    write_png("bomb.png", 30000, 30000, 8, bytes(100))
    write_png("thin.png", 1, 100000, 8, bytes(400000))
    write("resize.json", resize_cases())
    write("sizes.json", size_cases())
    write("smolvlm.json", smolvlm_cases())
    write("files.json", [*files(), animation(), sixteen_bits()])


if __name__ == "__main__":
    main()
