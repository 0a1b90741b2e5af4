"""Choice of the fastest drafting method for a target, a machine and prompts."""
