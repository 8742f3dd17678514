"""Axes of stacks: to pages and back, pages chosen, and what is no stack."""

import numpy as np
import pytest

from tvae.errors import UserError
from tvae.io.layout import Layout, layout_of, parse_pages


@pytest.mark.parametrize(
    ("axes", "shape", "n_pages"),
    [("TYX", (3, 4, 5), 3), ("TYXC", (2, 4, 5, 3), 2), ("CYX", (3, 4, 5), 1), ("TZCYX", (2, 3, 3, 4, 5), 6),
     ("YXT", (4, 5, 3), 3), ("YX", (4, 5), 1)],
)  # fmt: skip
def test_pages_one_above_the_other_and_back(axes, shape, n_pages):
    array, layout = np.arange(np.prod(shape)).reshape(shape), layout_of(axes.lower(), shape)
    tall = layout.to_tall(array)
    assert layout.n_pages == n_pages
    assert tall.shape == (4 * n_pages, 5, *([3] if "C" in axes else []))
    np.testing.assert_array_equal(layout.from_tall(tall), array)


def test_a_page_is_where_it_should_be():
    array = np.random.default_rng(0).random((2, 3, 3, 4, 5))
    tall = layout_of("TZCYX", array.shape).to_tall(array)
    np.testing.assert_array_equal(tall[4 * 4 : 5 * 4], array[1, 1].transpose(1, 2, 0))


def test_some_pages_have_one_axis():
    assert Layout("TZCYX", (2, 3, 3, 4, 5)).chosen([0, 5]) == Layout("TCYX", (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("axes", "shape", "problem"),
    [("TYX", (4, 5), "3 axes, but the array has 2"), ("TTX", (3, 4, 5), "each once"), ("TYC", (3, 4, 3), "Y and X"),
     ("T1X", (3, 4, 5), "a letter"), ("CSYX", (3, 3, 4, 5), "both are channels"), ("CYX", (7, 4, 5), "7 channels")],
)  # fmt: skip
def test_axes_that_cannot_be(axes, shape, problem):
    with pytest.raises(UserError, match=problem):
        layout_of(axes, shape)


def test_pages():
    assert parse_pages("0,5,7", 8) == [0, 5, 7]
    assert parse_pages("[2-4, 0]", 8) == [2, 3, 4, 0]
    for text, problem in {
        "8": "0 to 7",
        "a": "numbers",
        "1,1": "twice",
        "": "numbers",
        "3-1": "backwards",
        "0-99999999999999": "0 to 7",
        "9" * 40: "numbers",
        "²": "numbers",
        "2-": "numb",
    }.items():
        with pytest.raises(UserError, match=problem):
            parse_pages(text, 8)
