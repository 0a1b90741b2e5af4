"""Loading of a model from a folder or a hub id, checked before it is used."""
