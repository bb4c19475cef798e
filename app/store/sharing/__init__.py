"""Several services on one PostgreSQL: claims of jobs, and notices of what was committed."""
