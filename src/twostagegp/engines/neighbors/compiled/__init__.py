"""Loops that are compiled to machine code by Numba: neighbour search and many small GPs.

They release the interpreter's lock and never start threads of their own; callers split the work
over threads (``threads.py``). On a GPU, and for kernels without a compiled form, torch does the
same work instead. Only ``vector_loops.py`` uses Numba's internals.
"""
