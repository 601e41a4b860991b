"""Tables as people keep them: categories, booleans, text labels, dates and gaps as numbers."""

from twostagegp.data.columns.encoder import TableEncoder as TableEncoder
