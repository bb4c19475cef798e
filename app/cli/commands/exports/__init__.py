"""Commands that write winners as files of other programs."""
