"""Loops that are compiled to machine code by Numba: neighbour search and many small GPs.

They release the interpreter's lock and never start threads of their own; callers split the work
over threads (``threads.py``). On a GPU, and for kernels that are GPyTorch objects, torch does the
same work instead.
"""
