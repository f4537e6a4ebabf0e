import subprocess
import sys

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

from sciml import plot


def test_import_does_not_load_matplotlib():
    code = "import sciml, sys; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("function", [plot.data, plot.residuals, plot.waterfall])
def test_missing_extra_is_named(function, result, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install 'sciml-jax\[plot\]'"):
        function(result)


def test_nobodys_settings_change(result, band, ax):
    before = dict(mpl.rcParams)
    figure = plot.data(result, band())
    assert dict(mpl.rcParams) == before
    assert not figure.axes[0].spines["top"].get_visible()
    ax.set_xlabel("hours")
    plot.data(result, band(), ax=ax)
    assert ax.spines["top"].get_visible() and ax.get_xlabel() == "hours"


def test_axes_must_be_one(result, band):
    with pytest.raises(TypeError, match="`ax` must be one matplotlib Axes, but is a Figure"):
        plot.data(result, band(), ax=plot.data(result, band()))


def test_axes_above_others_are_not_labelled_with_the_time(result, band):
    above, below = plt.figure().subplots(2, sharex=True)
    plot.data(result, band(), ax=above)
    plot.data(result, band(), ax=below)
    assert [above.get_xlabel(), below.get_xlabel()] == ["", "time"]
