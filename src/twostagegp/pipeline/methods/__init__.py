"""What differs between the methods of a fit, as a value that the pipeline is given."""
