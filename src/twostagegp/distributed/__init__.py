"""Fit to and predict for Dask collections: training rows stay on the workers of a cluster.

``data/checks.py`` recognises Dask collections without importing Dask; this package is
imported only if there is one. docs/dask.md says what stays where and what is sent.
"""
