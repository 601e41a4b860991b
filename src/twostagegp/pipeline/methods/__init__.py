"""The methods of a fit: the choices that depend on the engine, as one object per method."""
