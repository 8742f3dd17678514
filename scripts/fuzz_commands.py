"""What the fuzzer tries with commands that train: options, other data, files, stacks, folders, outputs, many runs."""

from __future__ import annotations

import shutil
from pathlib import Path

from hypothesis import strategies as st

from scripts.fuzz_attempts import FITTING, OF_OTHER_DATA, TASKS, Attempt, an_option, damages, some_options, without
from scripts.fuzz_world import TINY, World, damage

PICTURES = ("grey.png", "colour.png", "alpha.png", "deep.png", "nan.tiff", "link.png")
STACKS = ("stack.tif", "stack.gif", "stack.npy")
NO_PICTURES = ("points.npy", "nowhere.png", "/dev/null", "model.tvae", "space.yaml", "photos")
CORRUPTIONS = (
    ["corruption=poisson", "peak=20"], ["corruption=correlated", "noise=20"],
    ["corruption=saltpepper", "outlier_share=0.1"],
    ["corruption=jpeg", "quality=30"], ["noise=25", "missing=0.3"], ["missing=0.5", "missing_per=channel"],
    ["sigma_map=sigma.tiff"], ["noise_model=poisson_gaussian"], ["noise_model=correlated"], ["noise_model=gaussian"],
)  # fmt: skip


@st.composite
def by_options(draw: st.DrawFn) -> Attempt:
    picture = draw(st.sampled_from(PICTURES))
    return Attempt(draw(TASKS), [f"image={picture}", *TINY, *draw(some_options())])


@st.composite
def by_noise(draw: st.DrawFn) -> Attempt:
    """Noise of all kinds, added or said to be there."""
    chosen = draw(st.lists(st.sampled_from(CORRUPTIONS), min_size=1, max_size=2))
    words = [word for option in chosen for word in option]
    picture = draw(st.sampled_from((*PICTURES, *STACKS)))
    return Attempt(draw(TASKS), [f"image={picture}", *TINY, *words, *draw(some_options(1))])


@st.composite
def by_data(draw: st.DrawFn) -> Attempt:
    """Data that are no images."""
    kinds = (["dataset=array", "dataset.file=points.npy"], ["dataset=bars", "dataset.n_points=30"])
    return Attempt("train", [*draw(st.sampled_from(kinds)), *OF_OTHER_DATA, *draw(some_options())])


@st.composite
def by_files(draw: st.DrawFn) -> Attempt:
    """A picture, a mask or a clean picture with other bytes, or another file in its place."""
    roles = {"image": "grey.png", "mask": "mask.png", "clean": "grey.png", "sigma_map": "sigma.tiff"}
    for role in draw(st.sets(st.sampled_from(sorted(roles)), max_size=2)):
        roles[role] = draw(st.sampled_from((*PICTURES, *STACKS, *NO_PICTURES)))
    victim, change = draw(st.sampled_from(sorted(roles))), draw(damages())
    source, target = roles[victim], f"damaged{Path(roles[victim]).suffix}"
    roles[victim] = target
    given = [role for role in roles if role in ("image", victim) or draw(st.booleans())]

    def apply(world: World) -> None:
        if (world.folder / source).is_file() and Path(source).name == source:
            shutil.copy(world.folder / source, world.folder / target)
            damage(world.folder / target, change)

    return Attempt(draw(TASKS), [*(f"{role}={roles[role]}" for role in given), *TINY], "run", apply, str(change))


@st.composite
def by_stacks(draw: st.DrawFn) -> Attempt:
    words = [f"image={draw(st.sampled_from(STACKS))}", *TINY]
    for name in draw(st.lists(st.sampled_from(("pages", "axes", "mask", "clean", "output")), max_size=3, unique=True)):
        words.append(draw(an_option(name)))
    return Attempt(draw(TASKS), [*words, *draw(some_options(1))])


@st.composite
def by_folders(draw: st.DrawFn) -> Attempt:
    """Every picture of a folder, one of which may be damaged."""
    words = [
        draw(st.sampled_from(("image=photos", "image=photos/*.png", "image=empty", "image=p*/?.*", "image=photos/**")))
    ]
    words += draw(st.sampled_from(([], ["shared=true"], ["output=results"], ["output=photos"], ["output=grey.png"])))
    words += draw(st.sampled_from(([], ["mask=masks"], ["mask=mask.png"], ["clean=photos"], ["mask=empty"])))
    change = draw(damages())
    return Attempt(
        draw(TASKS),
        [*words, *TINY, "epochs=1", *draw(some_options(1))],
        change=lambda world: damage(world.folder / "photos" / "b.png", change),
        about=str(change),
        n_lines_max=100,  # some for each picture
    )


@st.composite
def by_outputs(draw: st.DrawFn) -> Attempt:
    """Where the result is to go; as an option, or as the second of two bare words."""
    picture, output = draw(st.sampled_from((*PICTURES, *STACKS))), draw(st.sampled_from(FITTING["output"]))
    words = draw(st.sampled_from(([picture, output], [f"image={picture}", f"output={output}"], [picture])))
    more = draw(st.sampled_from(([], ["overwrite=true"], ["restart=true"], ["third.png"], ["mask=mask.png"])))
    named = [f"image={picture}", f"output={output}"] if len(words) == 2 and words[0] == picture else words
    task = draw(st.sampled_from(("denoise", "inpaint")))
    return Attempt(task, [*(named if "overwrite=true" in more else words), *more, *TINY])


@st.composite
def by_many_runs(draw: st.DrawFn) -> Attempt:
    """Several values of an option, each a run."""
    name = draw(st.sampled_from(("seed", "noise", "image", "effort", "epochs", "mask", "output", "lr.max", "run")))
    values = draw(st.lists(an_option(name), min_size=1, max_size=2, unique=True))
    word = f"{name}={','.join(value.partition('=')[2] for value in values)}"
    words = ["-m", "image=grey.png", *TINY, "epochs=1", word]
    return Attempt(draw(TASKS), words, where="hydra.sweep.dir")


@st.composite
def by_searches(draw: st.DrawFn) -> Attempt:
    """A search of two trials, in a space that may be wrong."""
    lines = st.sampled_from((
        "lr.max: {low: 0.001, high: 0.05}", "epochs: {low: 1, high: 2}", "epochs: {choices: [1, 2]}", "seed: 3", "[",
        "", "noise: {low: 1, high: 2}", "nowhere: {low: 1, high: 2}", "model: {choices: [linear]}", "lr.max: {low: 1}",
        "states.n_states: {low: 1, high: 100000}", "&a [*a]", "ea.selection: {choices: [posterior, odd]}",
    ))  # fmt: skip
    text = "\n".join(draw(st.lists(lines, min_size=1, max_size=2))) + "\n"
    asked = ["n_trials=2", "n_trials=0", "n_trials=x", "objective=psnr", "objective=elbo_test", "objective=x"]
    words = [
        "image=grey.png",
        *without(TINY, "epochs"),
        "epochs=1",
        f"space={draw(st.sampled_from(('space.yaml', 'x')))}",
    ]
    return Attempt(
        "search",
        [*words, "n_trials=2", *draw(st.lists(st.sampled_from(asked), max_size=1)), *draw(some_options(1))],
        change=lambda world: (world.folder / "space.yaml").write_text(text),
        about=repr(text),
    )


COMMANDS = {
    "options": by_options(), "noise": by_noise(), "other data": by_data(), "files": by_files(), "stacks": by_stacks(),
    "folders": by_folders(), "outputs": by_outputs(), "many runs": by_many_runs(), "searches": by_searches(),
}  # fmt: skip
