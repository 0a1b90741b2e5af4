"""Replicas on many machines, which Ray Serve places, counts and watches."""
