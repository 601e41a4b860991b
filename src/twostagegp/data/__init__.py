"""From a user's table to standardised, merged rows."""
