"""The devices of a host: what they can do, who may use them when, and the processes that hold them."""
