"""Resources of the process: threads, memory, devices, files, Dask clients and rollback of fits."""
