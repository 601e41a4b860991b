"""The neighbour engine: every prediction from the nearest training rows."""
