"""Turns images into rows of a language model: runs a vision tower on a GPU or in numpy, loaded with the first image."""

import gc
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.cache.config import CacheConfig, CacheOptions
from ..engine.fit import weights_bytes
from ..engine.gpu_runner import GpuRunner
from ..engine.host_runner import HostRunner
from ..engine.runner import PartRunner
from ..gguf.file import GGUFFile
from ..gpu.device import Device
from ..gpu.memory import device_available, host_available
from ..ops.batch import Batch
from ..ops.media import EMBEDDED, cos_and_sin
from ..ops.vocabulary import PAGE
from .conformer import ConformerTower
from .image import Image
from .pixels import patches_of
from .positions import by_axis, in_blocks, in_windows, learned, plane_angles, plane_waves
from .projector import Vision, vision_of
from .sam import Sam, SamTower, filled
from .sizes import Size
from .sound_tower import SoundTower
from .towers import ANGLES, PATCHES, POSITIONS, WAVES, WINDOWS, Tower

Floats = npt.NDArray[np.float32]
Rows = Mapping[str, Floats]  # [R, D] each
Key = tuple[bytes, int]  # identity of an image, and the salt of its request
AnyTower = Tower | SamTower | SoundTower | ConformerTower
MAX_KEPT = 256 << 20  # bytes of rows of earlier images
SIZES_KEPT = 4  # number of image sizes whose positions are kept
MIN_FREE = 512 << 20  # bytes of free memory below which the tower is released


def tower_bytes(encoder: "TowerEncoder") -> int:
    """Bytes that a loaded tower takes on its device: weights, keys and values. Intermediates are shared."""
    device = encoder.device
    with GGUFFile.open(encoder.path) as file:
        tower = encoder.tower(file)
        config = CacheConfig.of(tower, chunk_size=tower.context, **_cache_of(tower, device))
        return weights_bytes(device, file, tower) + config.total(tower.caches)


def _cache_of(tower: AnyTower, device: Device | None) -> CacheOptions:
    rows = tower.context
    return {
        "slots": 1, "context": rows, "tokens": -(-rows // PAGE) * PAGE, "cache_bytes": 0, "look_ahead": 0,
        "kv": "f32" if device is None else "f16",
    }  # fmt: skip


class TowerEncoder(ABC):
    """A tower of a projector file on a device; None is numpy. One thread calls `rows` and `advance`."""

    ids = 1  # ids for the rows of a step

    def __init__(self, path: Path, device: Device | None) -> None:
        self.path = path
        self.device = device
        self._kept: OrderedDict[Key, Rows] = OrderedDict()
        self._begun: tuple[Key, Generator[Rows | None]] | None = None  # the image that is being encoded

    @abstractmethod
    def tower(self, file: GGUFFile) -> AnyTower:
        """The tower, read from the open file"""

    @abstractmethod
    def inputs(self, image: Image, tile: npt.NDArray[Any]) -> tuple[Rows, npt.NDArray[np.int64]]:
        """The input rows of the tower for a tile, and the rows from which it makes output rows."""

    def joined(self, tiles: Sequence[Floats], image: Image, name: str) -> Floats:  # noqa: ARG002 - one after another
        """The rows of the language model, made from those of the tower."""
        return np.concatenate(tiles)

    @cached_property
    def runner(self) -> PartRunner:
        """The runner of the tower; loads it if needed."""
        with GGUFFile.open(self.path) as file:
            tower = self.tower(file)
            rows, options = tower.context, _cache_of(tower, self.device)
            if self.device is None:
                return HostRunner(file, tower, chunk_size=rows, **options)
            return GpuRunner(self.device, file, tower, chunk_size=rows, **options)

    def rows(self, image: Image, salt: int = 0) -> Rows:
        """The rows of an image by name. They are kept for later requests with the same salt."""
        while not self.advance(image, salt):
            pass
        return self._kept[image.identity, salt]

    def advance(self, image: Image, salt: int = 0) -> bool:
        """Submits the next part of the work on an image. True if its rows are ready.

        If another image was begun, it begins again later.
        """
        key = image.identity, salt
        if key not in self._kept:
            begun, self._begun = self._begun, None
            if begun is not None and begun[0] != key:
                begun[1].close()
                begun = None
            work = self._work(image) if begun is None else begun[1]
            found = next(work)
            if found is None:
                self._begun = key, work
                return False
            self._kept[key] = found
            self._release_if_short()
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and sum(map(_nbytes, self._kept.values())) > MAX_KEPT:
            self._kept.popitem(last=False)
        return True

    def _work(self, image: Image) -> Generator[Rows | None]:
        """Encodes an image: yields None after each part, and at last its rows."""
        tiles: list[Rows] = []
        for tile in image.tiles:
            if tiles:
                yield None
            for found in self._encoded(image, tile):
                if found is None:
                    yield None
                else:
                    tiles.append(found)
        yield {name: self.joined([rows[name] for rows in tiles], image, name) for name in tiles[0]}

    def batch(self, image: Image, tile: npt.NDArray[Any]) -> Batch:
        """The step of the tower for one tile"""
        given, outputs = self.inputs(image, tile)
        rows = len(next(iter(given.values())))
        batch = Batch.of([(0, 0, [row % self.ids for row in range(rows)])])
        return Batch(batch.ids, batch.segments, tuple(outputs.tolist()), extra_inputs=given)

    def _encoded(self, image: Image, tile: npt.NDArray[Any]) -> Iterator[Rows | None]:
        """Encodes one tile: yields None after each part, and at last its rows."""
        batch, runner = self.batch(image, tile), self.runner
        try:
            yield from runner.features(batch)
        finally:
            runner.store.forget(0)

    def encode(self, image: Image, tile: npt.NDArray[Any]) -> Rows:
        """The rows of one tile."""
        *_, found = self._encoded(image, tile)
        assert found is not None, "it comes last"
        return found

    def release(self) -> None:
        """Unloads the tower."""
        self.__dict__.pop("runner", None)

    def _release_if_short(self) -> None:
        """Unloads the tower if little memory is free. The next new image loads it again."""
        free = host_available() if self.device is None else device_available(self.device)
        if free is not None and free < MIN_FREE:
            self.release()
            gc.collect()  # plans and runners refer to each other


class SamEncoder(TowerEncoder):
    """SAM's tower of a projector file, which reads the patches before the vision tower does."""

    def __init__(self, vision: Vision, sam: Sam, device: Device | None) -> None:
        super().__init__(vision.path, device)
        self.vision = vision
        self._placed = lru_cache(SIZES_KEPT)(sam.places)

    def tower(self, file: GGUFFile) -> SamTower:
        sam = vision_of(file).sam
        assert sam is not None, "it was read from this file before"
        return sam.tower

    def inputs(self, image: Image, tile: npt.NDArray[np.uint8]) -> tuple[Rows, npt.NDArray[np.int64]]:
        patch, given = self._placed(image.grid)
        patches = patches_of(tile, replace(self.vision.preparation, merge=1))
        return {**given, PATCHES: filled(patches, patch)}, np.argsort(patch, kind="stable")[-len(patches) :]


class Encoder(TowerEncoder):
    """The vision tower of a projector file on a device."""

    def __init__(self, vision: Vision, device: Device | None) -> None:
        super().__init__(vision.path, device)
        self.vision = vision
        self.ids = vision.tower.vocabulary
        self._placed = lru_cache(SIZES_KEPT)(self._places)
        self.first = None if vision.sam is None else SamEncoder(vision, vision.sam, device)

    def tower(self, file: GGUFFile) -> Tower:
        return vision_of(file).tower

    def _encoded(self, image: Image, tile: npt.NDArray[Any]) -> Iterator[Rows | None]:
        if self.first is not None:
            for found in self.first._encoded(image, tile):
                if found is not None:
                    tile = found[EMBEDDED]
                yield None
        yield from super()._encoded(image, tile)

    def inputs(self, image: Image, tile: npt.NDArray[Any]) -> tuple[Rows, npt.NDArray[np.int64]]:
        vision, patches = self.vision, self._patches(image, tile)
        count = len(patches)
        given = {PATCHES: 2 * patches - 1 if vision.family.centred else patches, **self._placed(image.grid)}
        if vision.summary is not None:  # adds a row without pixels
            more = {PATCHES: 0 * patches[:1], POSITIONS: vision.summary[None]}
            if ANGLES in given:
                more[ANGLES] = cos_and_sin(np.zeros((1, given[ANGLES].shape[1] // 2)))
            given = {name: np.append(rows, more[name], 0) for name, rows in given.items()}
        outputs = np.arange(0, count, 1 if vision.sam is not None else vision.preparation.merge**2)
        if vision.summary is not None and vision.family.drops_first:
            outputs = outputs + 1
        if queries := vision.tower.projector.queries:
            given = {name: np.pad(rows, ((0, max(0, queries - count)), (0, 0))) for name, rows in given.items()}
            given[WINDOWS] = np.tile(np.array([0, count], np.float32), (max(queries, count), 1))
            outputs = np.arange(queries)
        if vision.window:
            given, outputs = self._in_windows(given, image.blocks)
        return given, outputs

    def _places(self, grid: Size) -> Rows:
        """The learned position embeddings and the angles of patches, which depend on the size of an image only."""
        vision, family, found = self.vision, self.vision.family, {}
        merge = vision.preparation.merge
        if vision.sam is not None:
            grid, merge = Size(grid.width // merge, grid.height // merge), 1
        places = in_blocks(grid, merge)
        if vision.table is not None:
            table, between = vision.table, family.between
            found[POSITIONS] = by_axis(table, places) if family.axes else learned(table, grid, places, between)
        if vision.tower.projector.queries:
            found[WAVES] = plane_waves(places, vision.width)
        if family.plane is not None:
            first = int(vision.summary is not None)  # the row without pixels is at 0
            found[ANGLES] = plane_angles(places + first, vision.head_size, family.plane)
        return found

    def _in_windows(self, given: Rows, blocks: Size) -> tuple[dict[str, Floats], npt.NDArray[np.int64]]:
        """The order of rows by windows, the bounds of the rows that each row attends to, and each block's first row."""
        each = self.vision.preparation.merge**2
        order, bounds = in_windows(blocks, self.vision.window)
        rows = (each * order[:, None] + np.arange(each)).reshape(-1)
        seen = np.repeat(each * bounds, each, axis=0).astype(np.float32)
        return {name: values[rows] for name, values in given.items()} | {WINDOWS: seen}, each * np.argsort(order)

    def joined(self, tiles: Sequence[Floats], image: Image, name: str) -> Floats:
        """Joins lines of blocks, with constant rows, in families that have some."""
        if image.frame is None or name != EMBEDDED:
            return np.concatenate(tiles)
        height = image.blocks.height
        lines = np.concatenate([rows.reshape(height, -1, rows.shape[1]) for rows in tiles], axis=1)
        return image.frame.around(lines.reshape(-1, lines.shape[2]), image.blocks)

    def release(self) -> None:
        super().release()
        if self.first is not None:
            self.first.release()

    def _patches(self, image: Image, tile: npt.NDArray[Any]) -> Floats:
        """The patches of a tile, made of its pixels or of the rows of SAM's tower."""
        sam = self.vision.sam
        return patches_of(tile, self.vision.preparation) if sam is None else sam.convolved(tile, image.grid)


def _nbytes(rows: Rows) -> int:
    return sum(array.nbytes for array in rows.values())
