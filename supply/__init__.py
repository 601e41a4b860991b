"""Where the packages come from: locks with hashes, licences, versions that were really tried."""
