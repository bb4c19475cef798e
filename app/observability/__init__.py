"""What an operator sees of requests from outside: their ids, their log lines, and their traces."""
