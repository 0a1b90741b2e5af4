"""Images in prompts: what the model's processor makes of them, and the rows that the
vision tower puts in the text.
"""
