"""Figures from results, by matplotlib (the extra `plot`): data and curves, residuals, starts."""

from ._data import data as data
from ._residuals import residuals as residuals
from ._waterfall import waterfall as waterfall
