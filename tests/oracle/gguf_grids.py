"""Write `trace/ops/src/format/grids.txt`: the grids of the IQ types, from the package `gguf`. A line has a type's name and a set of
numbers, as bits in hexadecimal digits, of which the lowest bit of the first is for 0. The digits of a number, of base 3 or 8 and
the lowest first, are the places of a row's numbers in the type's list of magnitudes. The rows of each grid are in this order."""

from pathlib import Path

import gguf.quants as quants

OUT = Path(__file__).parents[2] / "trace" / "ops" / "src" / "format" / "grids.txt"

lines = []
for name in ["IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"]:
    kind = getattr(quants, name)
    kind.init_grid()
    magnitudes = list(kind.grid_map)
    rows = kind.grid.reshape(kind.grid_shape).tolist()
    numbers = [sum(magnitudes.index(x) * len(magnitudes) ** place for place, x in enumerate(row)) for row in rows]
    assert numbers == sorted(set(numbers)), name
    bits = sum(1 << number for number in numbers)
    lines.append(name + " " + f"{bits:x}"[::-1])
OUT.write_text("\n".join(lines) + "\n")
