"""Which config answers a problem: tuned, nearest or default, and what is known of each."""
