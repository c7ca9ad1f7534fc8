"""Where a replica runs; what it runs there is the business of backends."""
