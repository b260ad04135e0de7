"""Patches Mesa's stub of AMD's kernel driver to report a Strix Halo (gfx1151), which the original lacks.

    python benchmarks/offline/strix_halo.py FOLDER

Copies libamdgpu_noop_drm_shim.so in a folder to libgfx1151_noop_drm_shim.so. In the copy, the entry of strix1
(gfx1150), of the same family, has the device and revision numbers of Strix Halo, by which Mesa distinguishes them.
Other values, such as the number of compute units, are still those of strix1; Mesa's compiler does not use them.
"""

import struct
import sys
from pathlib import Path

GC_11_5 = 150  # the number of the family in amdgpu_drm.h
STRIX1 = struct.pack("<5I", 0x150E, 1, 0x11, 0xD1, GC_11_5)  # device, chip, revision, revision on the bus, family
STRIX_HALO = struct.pack("<5I", 0x1586, 1, 0xC1, 0xD1, GC_11_5)


def main(folder: Path) -> None:
    library = (folder / "libamdgpu_noop_drm_shim.so").read_bytes()
    if library.count(STRIX1) != 1:
        sys.exit(f"{folder}: Mesa's stand-in has no strix1 that looks as it did in Mesa 26.2")
    (folder / "libgfx1151_noop_drm_shim.so").write_bytes(library.replace(STRIX1, STRIX_HALO))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
