"""Predictions along one column of the user's table, with the other columns at typical values."""

from twostagegp.plotting.slices.answers import Answers as Answers
from twostagegp.plotting.slices.effects import shuffle_effects as shuffle_effects
from twostagegp.plotting.slices.grids import Grid as Grid
from twostagegp.plotting.slices.grids import make_grid as make_grid
from twostagegp.plotting.slices.slice import Slice as Slice
from twostagegp.plotting.slices.slice import make_slices as make_slices
from twostagegp.plotting.slices.tables import model_frame as model_frame
from twostagegp.plotting.slices.tables import training_frame as training_frame
from twostagegp.plotting.slices.tables import typical_row as typical_row
