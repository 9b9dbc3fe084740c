"""Writes `tests/fixtures/gguf/parts/split-0000N-of-00003.gguf`: a fixture in three parts, as the writer of the package `gguf` divides it.

The writer is that of llama.cpp's converters (`convert_hf_to_gguf.py --split-max-tensors`). Needs what is in `gguf.txt`.
"""

from pathlib import Path

import gguf

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures/gguf"
PARTS = 3


def main():
    whole = gguf.GGUFReader(FIXTURES / "q4_0.gguf")
    most = -(-len(whole.tensors) // PARTS)
    architecture = whole.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(FIXTURES / "parts/split.gguf", architecture, split_max_tensors=most)
    for field in whole.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind, *element = field.types
        writer.add_key_value(field.name, field.contents(), kind, element[0] if element else None)
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
