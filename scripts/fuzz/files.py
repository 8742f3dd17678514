"""Attempts with files that change under a run, that declare what they do not hold, and calls at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tifffile
from hypothesis import strategies as st

import tvae
from scripts.fuzz.attempts import TASKS, Attempt, Call, arrays
from scripts.fuzz.world import TINY, World
from tvae.io.image_file import read_image
from tvae.io.stack_file import read_picture
from tvae.runs.result import result_file

N_CALLS = 4  # at once
NOTES = ((b'SizeZ="3"', b'SizeZ="%d"'), (b"images=3", b"images=%d"), (b"slices=3", b"slices=%d"))
FOREIGN = (".out.png.partial", ".results.partial", ".grey.png.partial", "photos/.a.png.partial", ".tvae-mine.partial")


@dataclass(frozen=True)
class Changed(Attempt):
    """A run whose picture is then stored with the same values in another type or shape: that has to be noticed."""

    kind: str = "uint16"

    def run(self, world: World) -> Any:
        code = super().run(world)
        if code != 0:
            return code
        values = np.load("changing.npy")
        np.save(
            "changing.npy", values.reshape(values.shape[::-1]) if self.kind == "shape" else values.astype(self.kind)
        )
        assert super().run(world) == 2, "a changed picture is not noticed"
        np.save("changing.npy", values)
        return 0

    @property
    def may_change(self) -> list[str]:
        return [*super().may_change, "changing.npy"]


@st.composite
def by_changed_pictures(draw: st.DrawFn) -> Attempt:
    def apply(world: World) -> None:
        np.save(world.folder / "changing.npy", read_image(world.folder / "grey.png").pixels[..., 0].astype(np.uint8))

    words = ["image=changing.npy", *TINY, "dataset.patch_size=4"]
    return Changed("denoise", words, "changing", apply, kind=draw(st.sampled_from(("uint16", "float32", "shape"))))


@dataclass(frozen=True)
class Declared(Attempt):
    """A file that may have been cut off, or hold other pages than it declares: no value may be lost without a word."""

    n_values: int = 0
    is_wrong: bool = False

    def run(self, world: World) -> Any:
        code = super().run(world)
        if code == 0:
            found = result_file(world.folder / self.directory)
            assert not self.is_wrong, "a file that holds other pages than it declares is restored"
            assert found is not None
            assert read_picture(found).pixels.size == self.n_values, "a part of the file is missing"
        return code


@st.composite
def by_declarations(draw: st.DrawFn) -> Attempt:
    """TIFF files with channels, planes and alpha of all kinds, with notes of other pages than there are, or cut off."""
    rng, n_channels = np.random.default_rng(draw(st.integers(0, 9))), draw(st.integers(1, 5))
    kind, is_planar = draw(st.sampled_from(("unspecified", "assocalpha", "unassalpha"))), draw(st.booleans())
    program = draw(st.sampled_from((None, "imagej", "ome")))
    n_claimed, share = draw(st.sampled_from((3, 3, 3, 1, 2, 4, 9))), draw(st.sampled_from((1, 1, 1, 0.5, 0.7, 0.9)))
    orientation, dtype = draw(st.integers(0, 9)), draw(st.sampled_from(("uint8", "uint16", "float32")))
    tag = (274, "H", 1, orientation, False)

    def cut(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: round(share * len(content))])

    def apply(world: World) -> None:
        path = world.folder / "declared.tif"
        if program is None:
            shape = (n_channels, 16, 18) if is_planar else (16, 18, n_channels)
            is_colour = n_channels in (3, 4)
            n_extra = max(0, n_channels - (3 if is_colour else 1))
            how: dict[str, Any] = {} if n_channels == 1 else {"planarconfig": "separate" if is_planar else "contig"}
            tifffile.imwrite(
                path, (200 * rng.random(shape)).astype(dtype), photometric="rgb" if is_colour else "minisblack",
                extrasamples=[kind] * n_extra or None, extratags=[tag], **how,
            )  # fmt: skip
            cut(path)
            return
        tifffile.imwrite(
            path,
            (200 * rng.random((3, 16, 18))).astype(dtype),
            metadata={"axes": "ZYX"},
            imagej=program == "imagej",
            ome=program == "ome",
        )
        content = path.read_bytes()
        for note, other in NOTES:
            content = content.replace(note, other % n_claimed)
        path.write_bytes(content)
        cut(path)

    about = f"{n_channels} {kind} {is_planar} {program} {n_claimed} {share} {orientation} {dtype}"
    n_planes = 3 if program is not None else n_channels - (kind != "unspecified" and n_channels in (2, 4))
    words, is_wrong = ["image=declared.tif", *TINY, "dataset.patch_size=4"], program is not None and n_claimed != 3
    return Declared(
        "denoise", words, "new", apply, about, n_values=16 * 18 * n_planes, is_wrong=is_wrong and share == 1
    )


@st.composite
def by_foreign_files(draw: st.DrawFn) -> Attempt:
    """Files of others with names that look like temporary ones; that none has changed is looked at for all attempts."""

    def apply(world: World) -> None:
        for name in FOREIGN:
            (world.folder / name).write_bytes(b"mine")

    image, output = draw(
        st.sampled_from((("grey.png", "out.png"), ("photos", "results"), ("colour.png", "photos/c.png")))
    )
    words = [f"image={image}", f"output={output}", "mask=mask.png" if image != "photos" else "mask=masks", *TINY]
    return Attempt(draw(TASKS), words, "new", apply)


@dataclass(frozen=True)
class AtOnce(Call):
    """The same call several times in threads; all end alike."""

    def call(self, world: World) -> Any:
        def one(_: int) -> Any:
            try:
                return tvae.denoise(self.array, overrides=self.words, **self.arguments)
            except Exception as error:
                return error

        with ThreadPoolExecutor(N_CALLS) as pool:
            ends = list(pool.map(one, range(N_CALLS)))
        errors = [end for end in ends if isinstance(end, Exception)]
        assert len({str(error) for error in errors}) <= 1, errors
        if errors:
            assert len(errors) == N_CALLS, "only some of the calls fail"
            raise errors[0]
        for end in ends[1:]:
            assert np.array_equal(end, ends[0], equal_nan=end.dtype.kind == "f"), "another result beside other calls"
        return ends[0]


@st.composite
def by_calls_at_once(draw: st.DrawFn) -> Call:
    array = draw(arrays())
    arguments = {"channel_axis": -1} if array.ndim == 3 else {}
    return AtOnce("denoise", TINY[:-1], about=f"{array.shape} {array.dtype}", array=array, arguments=arguments)


FILES = {
    "changed pictures": by_changed_pictures(), "declarations": by_declarations(), "foreign files": by_foreign_files(),
    "calls at once": by_calls_at_once(),
}  # fmt: skip
