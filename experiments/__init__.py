"""Experiments on data whose truth is known, one program each.

- ``python -m experiments.kernel_recovery``: does a kernel search find the kernel?
- ``python -m experiments.misspecification_tests``: level, power and diagnosis of the tests.
"""
