"""What a model says along one column of the user's table, the others at typical values."""

from twostagegp.slices.answers import Answers as Answers
from twostagegp.slices.effects import shuffle_effects as shuffle_effects
from twostagegp.slices.grids import Grid as Grid
from twostagegp.slices.grids import make_grid as make_grid
from twostagegp.slices.slice import Slice as Slice
from twostagegp.slices.slice import make_slices as make_slices
from twostagegp.slices.tables import model_frame as model_frame
from twostagegp.slices.tables import training_frame as training_frame
from twostagegp.slices.tables import typical_row as typical_row
