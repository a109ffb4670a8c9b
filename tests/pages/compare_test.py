"""The page of `braid compare` in a browser."""

import os
import subprocess

import pytest
import runs

BRAID = os.environ["BRAID"]


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    runs.make_run(folder / "base")
    runs.make_run(folder / "other", scale=0.93, lr="0.002")
    path = str(folder / "compare.html")
    compared = subprocess.run([BRAID, "compare", folder / "base", folder / "other", "--html", path], capture_output=True)
    assert compared.returncode == 1, compared.stderr
    return path


@pytest.mark.parametrize("width", [1200, 400])
def test_loads_and_fits(opened, page_file, width):
    page = opened(page_file, width=width)
    assert page.overflow() <= 0
    curves = page.run("document.querySelectorAll('#chart-lm_loss svg .curve').length")
    assert curves == 2


def test_shows_where_the_runs_differ(opened, page_file):
    page = opened(page_file)
    assert page.text("h1") == "base and other"
    row = next(text.split("\t") for text in page.texts("tr") if text.startswith("lm loss\t"))
    assert row[3] == "1"
    assert float(row[4]) == pytest.approx(runs.loss_of(1), rel=1e-6)
    assert float(row[5]) == pytest.approx(runs.loss_of(1, 0.93), rel=1e-6)
    assert row[6] == "0.07"
    norm = next(text.split("\t") for text in page.texts("tr") if text.startswith("grad norm\t"))
    assert norm[2:4] == ["0", "none"]
