"""Attempts with files that change under a run, that declare what they do not hold, and calls at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tifffile
from hypothesis import strategies as st

import tvae
from scripts.fuzz.attempts import TASKS, Attempt, Call, arrays
from scripts.fuzz.world import TINY, World
from tvae.io.image_file import read_image

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


@st.composite
def by_declarations(draw: st.DrawFn) -> Attempt:
    """TIFF files with channels, planes and alpha of all kinds, and notes of more or fewer pages than there are."""
    rng, n_channels = np.random.default_rng(draw(st.integers(0, 9))), draw(st.integers(1, 5))
    kind, is_planar = draw(st.sampled_from(("unspecified", "assocalpha", "unassalpha"))), draw(st.booleans())
    n_claimed, program = draw(st.integers(1, 9)), draw(st.sampled_from((None, "imagej", "ome")))
    orientation, dtype = draw(st.integers(0, 9)), draw(st.sampled_from(("uint8", "uint16", "float32")))
    tag = (274, "H", 1, orientation, False)

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

    about = f"{n_channels} {kind} {is_planar} {program} {n_claimed} {orientation} {dtype}"
    return Attempt("denoise", ["image=declared.tif", *TINY, "dataset.patch_size=4"], "new", apply, about)


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
