"""Experiments that decide a question about the method itself, one program each.

- ``python -m experiments.kernel_recovery``: does a kernel search find the kernel, and what does a
  wrong choice cost?

Each program writes what it measured (JSON lines), tables made from it (Markdown) and a picture to
``experiments/results``. A run that was broken off goes on where it stopped.
"""
