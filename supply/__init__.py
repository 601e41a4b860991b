"""Programs about the project: locks, licences, versions tried, coverage, counts."""
