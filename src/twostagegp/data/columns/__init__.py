"""Encode columns of any kind as numbers: categories, booleans, text labels, dates and gaps."""

from twostagegp.data.columns.encoder import TableEncoder as TableEncoder
