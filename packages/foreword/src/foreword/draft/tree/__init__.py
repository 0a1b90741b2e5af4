"""Draft trees grown by a draft model, and the drafter that grows them."""
