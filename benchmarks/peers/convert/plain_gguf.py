"""Write a quantised GGUF file again with plain weights, so that engines which read GGUF can run unquantised.

    python -m benchmarks.peers.convert.plain_gguf SOURCE.gguf TARGET.gguf fp32|bf16

Metadata and the order of tensors stay; every matrix is dequantised, and vectors (norms) stay float32, as
llama.cpp's own converter leaves them. Needs the packages gguf and numpy.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

# llama.cpp's numbers of the file types (general.file_type)
FILE_TYPES = {"fp32": 0, "bf16": 32}
# written by the writer itself, or about the old quantisation
_OWN_FIELDS = ("GGUF.", "general.architecture", "general.file_type", "general.quantization_version")


def write_plain(source: Path, target: Path, dtype: str) -> None:
    """Write `target` with the values of `source` in `dtype`; appears whole or not at all."""
    import gguf

    reader = gguf.GGUFReader(str(source))
    part = target.with_name(target.name + ".part")
    writer = gguf.GGUFWriter(str(part), _text(reader.fields["general.architecture"]))
    for name, found in reader.fields.items():
        if not name.startswith(_OWN_FIELDS):
            kinds = found.types
            sub = kinds[1] if len(kinds) > 1 else None
            writer.add_key_value(name, found.contents(), kinds[0], sub_type=sub)
    writer.add_file_type(FILE_TYPES[dtype])
    plain = gguf.GGMLQuantizationType.F32 if dtype == "fp32" else gguf.GGMLQuantizationType.BF16
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        kind = plain if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(target)


def _text(found: Any) -> str:
    return str(found.contents())


def main(argv: list[str]) -> int:
    """Convert one file. Returns the exit status."""
    if len(argv) != 3 or argv[2] not in FILE_TYPES:
        sys.stderr.write(__doc__ or "")
        return 2
    write_plain(Path(argv[0]), Path(argv[1]), argv[2])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
