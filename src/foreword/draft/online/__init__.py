"""Training of the draft model while it drafts."""
