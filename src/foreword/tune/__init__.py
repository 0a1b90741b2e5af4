"""Search for the layers that self-speculative drafting leaves out, by
measured speed.
"""
