"""How ggml stores numbers. Each tensor type is a row: a block has `block` weights in `nbytes` bytes.

FORMATS are the types that our kernels read. SIZES has the block sizes of all types in llama.cpp, to lay out any file.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A tensor type: its ggml name and id, the size of its blocks, and how kernels read it."""

    name: str
    type: int
    block: int
    nbytes: int
    run: int = 0  # weights that share a scale, which a kernel decodes at a time; 0: no kernel reads the type
    shared: tuple[str, ...] = ()  # shader parts that its own part calls

    @property
    def shader(self) -> str:
        """The shader part that decodes the format: q4_k."""
        return self.name.lower()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that a kernel links to read the format."""
        return tuple(f"formats/{part}" for part in (self.shader, *self.shared, "runs"))

    def row_bytes(self, width: int) -> int:
        """Bytes of a row in the file."""
        assert width % self.block == 0, f"{width} weights are not whole blocks of {self.name}"
        return width // self.block * self.nbytes


def _by_type(*rows: Format) -> dict[int, Format]:
    return {row.type: row for row in rows}


FORMATS: dict[int, Format] = _by_type(
    Format("F32", 0, 1, 4, 32),
    Format("F16", 1, 1, 2, 32, ("halves",)),
    Format("BF16", 30, 1, 2, 32, ("halves",)),
    Format("Q4_0", 2, 32, 18, 32, ("packed", "vec4s", "unsigned", "nibbles")),
    Format("Q4_1", 3, 32, 20, 32, ("packed", "vec4s", "unsigned", "nibbles")),
    Format("Q5_0", 6, 32, 22, 32, ("packed", "vec4s", "unsigned", "nibbles", "fifths")),
    Format("Q5_1", 7, 32, 24, 32, ("packed", "vec4s", "unsigned", "nibbles", "fifths")),
    Format("Q8_0", 8, 32, 34, 32, ("packed", "vec4s", "signed")),
    Format("Q2_K", 10, 256, 84, 16, ("packed", "vec4s", "unsigned")),
    Format("Q3_K", 11, 256, 110, 16, ("packed", "vec4s", "unsigned")),
    Format("Q4_K", 12, 256, 144, 32, ("packed", "unsigned", "nibbles", "scales_k")),
    Format("Q5_K", 13, 256, 176, 32, ("packed", "vec4s", "unsigned", "nibbles", "fifths", "scales_k")),
    Format("Q6_K", 14, 256, 210, 16, ("packed", "vec4s", "unsigned")),
    Format("IQ4_NL", 20, 32, 18, 32, ("packed", "vec4s", "signed", "nibbles", "table_iq4")),
    Format("IQ4_XS", 23, 256, 136, 32, ("packed", "signed", "nibbles", "table_iq4")),
    Format("MXFP4", 39, 32, 17, 32, ("packed", "vec4s", "signed", "e2m1")),
    Format("NVFP4", 40, 64, 36, 16, ("packed", "vec4s", "signed", "e2m1")),
    Format("TQ1_0", 34, 256, 54, 16, ("packed", "vec4s", "unsigned")),
    Format("TQ2_0", 35, 256, 66, 16, ("packed", "vec4s", "unsigned")),
    Format("Q1_0", 41, 128, 18, 32, ("packed", "vec4s", "unsigned")),
    Format("Q2_0", 42, 64, 18, 16, ("packed", "vec4s", "unsigned")),
    Format("IQ1_S", 19, 256, 50, 32, ("packed", "vec4s", "unsigned", "codebook")),
    Format("IQ1_M", 29, 256, 56, 16, ("packed", "vec4s", "unsigned", "codebook")),
    Format("IQ2_XXS", 16, 256, 66, 32, ("packed", "vec4s", "signed", "codebook", "codebook_iq2")),
    Format("IQ2_XS", 17, 256, 74, 16, ("packed", "vec4s", "signed", "codebook", "codebook_iq2")),
    Format("IQ2_S", 22, 256, 82, 16, ("packed", "vec4s", "signed", "codebook", "codebook_iq2")),
    Format("IQ3_XXS", 18, 256, 98, 32, ("packed", "vec4s", "signed", "codebook")),
    Format("IQ3_S", 21, 256, 110, 32, ("packed", "vec4s", "signed", "codebook")),
)

SIZES: dict[int, Format] = FORMATS | _by_type(
    Format("F64", 28, 1, 8),
    Format("I8", 24, 1, 1),
    Format("I16", 25, 1, 2),
    Format("I32", 26, 1, 4),
    Format("I64", 27, 1, 8),
    Format("Q8_1", 9, 32, 40),
    Format("Q8_K", 15, 256, 292),
)
