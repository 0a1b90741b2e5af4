"""Several engines behind one address: processes of this machine, or of a cluster."""
