"""Rows on the workers of a Dask cluster: a fit from a sample, predictions from all rows.

``detect`` tells Dask collections from other tables without importing Dask; everything else here is
imported once there is one. docs/dask.md says what stays where and what is sent.
"""
