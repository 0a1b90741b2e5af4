"""What another drafter would have earned on a text that is known.

Under `match` the text does not depend on the drafter, so this is a fact and not an
estimate.
"""
