"""Choice of a backend: each is compared with the model itself before it is used."""
