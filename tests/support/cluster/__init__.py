"""Ray clusters of several nodes on one machine, whose nodes are killed, stopped and started again."""
